"""`export`: carry a run's artifacts and tables away."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...core.export.exports import write_export
from ...core.runs.directory import find_run
from .report.output import print_json


def main(arguments: argparse.Namespace) -> int:
    """Always 0 when the files were written; their paths are printed."""
    run = find_run(arguments.run)
    out = Path(arguments.output) if arguments.output else None
    paths = write_export(run, arguments.kind, out, force=arguments.force)
    if arguments.json:
        print_json({"run": run.id, "kind": arguments.kind, "paths": [str(one) for one in paths]})
    else:
        print(*paths, sep="\n")
    return 0
