from . import (
    bulk as bulk,
    cli as cli,
    playground as playground,
    plots as plots,
    quickstart as quickstart,
    serving as serving,
)
