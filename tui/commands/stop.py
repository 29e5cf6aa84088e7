"""`stop`: end a live run in order, keeping its measurements."""

from __future__ import annotations

import argparse

from ...core.runs import launch
from ...core.runs.directory import find_run
from .arguments import add_run_argument, examples
from .attach import follow
from .report.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run to end."""
    parser.description = (
        "Ask a run's supervisor to end it. Passes that are finished stay in the record."
    )
    parser.epilog = examples(("sysbench-tui stop last", ""))
    add_run_argument(parser)


def main(arguments: argparse.Namespace) -> int:
    """Stop the run and wait for its end; 0 whether or not it was live."""
    run = find_run(arguments.run)
    stopped = launch.stop(run)
    if stopped:
        for _ in follow(run):
            pass
    if arguments.json:
        print_json({"id": run.id, "stopped": stopped})
    else:
        print(f"{run.id} {'stopped' if stopped else 'was not running'}")
    return 0
