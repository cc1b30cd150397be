from . import (
    bulk as bulk,
    cli as cli,
    plots as plots,
    quickstart as quickstart,
    serving as serving,
)
