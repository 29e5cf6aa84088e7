"""Run a spec, and follow jobs until they end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from sysbench.core.experiments.experiment import experiment_meant
from sysbench.core.machine.peaks import parse_peak
from sysbench.core.record.events import AnyEvent, RunEnded
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, create_run, find_run
from sysbench.core.runs.supervisor import supervise
from sysbench.tui.commands.ab_report import attach_to
from sysbench.tui.commands.output import cancelled_by_signals, print_started
from sysbench.tui.commands.progress import RunFold, show_events
from sysbench.tui.commands.run_report import print_ending
from sysbench.tui.commands.spec_arguments import (
    chosen_passes,
    chosen_spec,
)

POLL_SECONDS = 0.2


def run_spec(arguments: argparse.Namespace) -> int:
    """Run; return 0 if finished, 130 if cancelled, else 1."""
    spec = chosen_spec(arguments)
    passes = chosen_passes(arguments, spec)
    peak = None if arguments.peak is None else parse_peak(arguments.peak)
    run = create_run(spec, passes, peak=peak, repeat=arguments.repeat)
    if arguments.detach:
        return print_started(run, run.start(), json=arguments.json)
    cancel = Cancellation()
    with cancelled_by_signals(cancel):
        events = supervise(run, wait=not arguments.no_wait, cancel=cancel)
        show_events(RunFold(), events, json=arguments.json)
    return print_ending(run, json=arguments.json)


def attach(arguments: argparse.Namespace) -> int:
    """Follow the run; return the exit code of `run`."""
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
