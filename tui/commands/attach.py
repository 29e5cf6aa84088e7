"""`attach`: follow a live run, or an experiment, from any terminal until it ends."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from sysbench.core.record.events import AnyEvent, RunEnded
from sysbench.core.runs.run_directory import RunDirectory, find_run
from sysbench.tui.commands.arguments import add_run_argument, examples

POLL_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Follow a run or an experiment of `ab` from any terminal. Ctrl+C stops following; the\n"
        "run goes on."
    )
    parser.epilog = examples(("sysbench-tui attach last", ""))
    add_run_argument(parser)


def main(arguments: argparse.Namespace) -> int:
    """Follow the run; return the exit code of `run`."""
    from sysbench.core.experiments.experiment import experiment_meant  # lazy: --help stays fast
    from sysbench.tui.commands.ab_report import attach_to  # lazy: --help stays fast
    from sysbench.tui.commands.progress import RunFold, show_events  # lazy: --help stays fast
    from sysbench.tui.commands.run_report import print_ending  # lazy: --help stays fast

    experiment = experiment_meant(arguments.run)
    if experiment is not None:
        return attach_to(experiment, json=arguments.json)
    run = find_run(arguments.run)
    show_events(RunFold(), follow_job(run), json=arguments.json, job=run.id)
    return print_ending(run, json=arguments.json)


def follow_job(run: RunDirectory) -> Iterator[AnyEvent]:
    """Yield all events of the run until it ends or dies."""
    tail = run.tail()
    while True:
        # Check before reading: a live supervisor may write more events afterwards.
        alive = run.is_beginning() or run.is_live()
        ended = False
        for event in tail.read():
            yield event
            # An ended run may have started another round.
            ended = isinstance(event, RunEnded)
        if ended or not alive:
            return
        time.sleep(POLL_SECONDS)
