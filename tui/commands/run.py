"""`run`: measure a spec here and now, or start it and leave."""

from __future__ import annotations

import argparse

from ...core.machine.peaks import parse_peak
from ...core.runs.directory import create_run
from ...core.runs.launch import start_detached
from ...core.runs.supervisor import Cancellation, supervise
from .report.ending import print_ending
from .report.output import print_json
from .report.progress import progress_for
from .report.signals import cancelled_by_signals
from .spec_arguments import chosen_passes, chosen_spec


def main(arguments: argparse.Namespace) -> int:
    """The run's exit code: 0 finished, 130 cancelled, 1 anything else."""
    spec = chosen_spec(arguments)
    passes = chosen_passes(arguments, spec)
    peak = None if arguments.peak is None else parse_peak(arguments.peak)
    run = create_run(spec, passes, peak=peak)
    if arguments.detach:
        pid = start_detached(run)
        if arguments.json:
            print_json({"id": run.id, "pid": pid, "path": str(run.path)})
        else:
            print(f"{run.id} started, process {pid}")
            print(f"follow it with `sysbench-tui attach {run.id}`, end it with `stop`")
        return 0
    cancel = Cancellation()
    with cancelled_by_signals(cancel), progress_for(json=arguments.json) as progress:
        for event in supervise(run, wait=not arguments.no_wait, cancel=cancel):
            progress.show(event)
    return print_ending(run, json=arguments.json)
