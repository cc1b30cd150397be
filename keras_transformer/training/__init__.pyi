from .averages import average_run as average_run
from .state import load_average as load_average
from .report import read_summary as read_summary, summary_lines as summary_lines
from .run_model import (
    compiled_model as compiled_model,
    make_optimizer as make_optimizer,
)
from .train import (
    default_config as default_config,
    dry_run as dry_run,
    train as train,
)
