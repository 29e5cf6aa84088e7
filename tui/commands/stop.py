"""`stop`: end a live run in order; what it has measured is kept."""

from __future__ import annotations

import argparse

from ...core.runs import launch
from ...core.runs.directory import find_run
from .attach import follow
from .report.output import print_json


def main(arguments: argparse.Namespace) -> int:
    """0, whether or not the run was live; returns once it has ended."""
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
