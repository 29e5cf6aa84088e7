"""Run a spec, follow jobs until they end, and stop them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from sysbench.core.experiments.experiment import experiment_meant
from sysbench.core.experiments.experiment_runner import follow_experiment
from sysbench.core.machine.devices import find_cuda
from sysbench.core.machine.peaks import parse_peak
from sysbench.core.predict.closed_form import predict
from sysbench.core.record.events import AnyEvent, RunEnded
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, create_run, find_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.forecast import expected_step_ms
from sysbench.tui.commands.ab_report import attach_to
from sysbench.tui.commands.output import cancelled_by_signals, print_answer, print_started, say
from sysbench.tui.commands.progress import SLOW_STEP_MS, RunFold, show_events
from sysbench.tui.commands.run_report import print_ending
from sysbench.tui.commands.spec_arguments import asked_spec, chosen_passes, chosen_spec
from sysbench.tui.text import elapsed, operations

POLL_SECONDS = 0.2
SLOW_STEP_FLOPS = 1e12
"""Work of a step that may take seconds on a CPU."""


def run_spec(arguments: argparse.Namespace) -> int:
    """Run; return 0 if finished, 130 if cancelled, else 1."""
    spec = chosen_spec(arguments)
    passes = chosen_passes(arguments, spec)
    peak = None if arguments.peak is None else parse_peak(arguments.peak)
    run = create_run(spec, passes, peak=peak, repeat=arguments.repeat)
    if asked_spec(arguments).device == "auto" and not spec.on_cuda and not arguments.json:
        found = find_cuda()
        if not found.is_left_out:  # the run reports a GPU that was left out
            say(f"device auto is cpu: {found.why_none}", to_stderr=True)
    if arguments.detach:
        return print_started(run, run.start(), json=arguments.json)
    if text := step_forecast(spec):
        say(text, to_stderr=True)
    cancel = Cancellation()
    with cancelled_by_signals(cancel):
        events = supervise(run, wait=not arguments.no_wait, cancel=cancel)
        show_events(RunFold(), events, json=arguments.json)
    return print_ending(run, json=arguments.json)


def step_forecast(spec: RunSpec) -> str:
    """Say how long a slow step will take, or why that is unknown; empty for other steps."""
    step_ms = expected_step_ms(spec)
    if step_ms is not None:
        is_slow = step_ms >= SLOW_STEP_MS
        return f"about {elapsed(step_ms / 1e3)} a step here, by earlier runs" if is_slow else ""
    if spec.workload != "transformer" or spec.on_cuda:
        return ""
    flops = predict(spec).step_flops
    if flops < SLOW_STEP_FLOPS:
        return ""
    return (
        f"{operations(flops)} a step on the CPU, and no similar run here: how long that takes is "
        "known after the first step"
    )


def attach(arguments: argparse.Namespace) -> int:
    """Follow the run; return the exit code of `run`."""
    experiment = experiment_meant(arguments.run)
    if experiment is not None:
        return attach_to(experiment, arguments)
    run = find_run(arguments.run)
    show_events(RunFold(), follow_job(run), json=arguments.json, job=run.id)
    return print_ending(run, json=arguments.json)


def follow_job(run: RunDirectory) -> Iterator[AnyEvent]:
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


def _stop_run(run: RunDirectory) -> bool:
    """Stop the run; wait for the supervisor of a new run first."""
    while run.is_beginning():
        if run.stop():
            return True
        time.sleep(POLL_SECONDS)
    return run.stop()


def stop(arguments: argparse.Namespace) -> int:
    """Stop the run and wait for its end; always return 0."""
    events: Iterator[object]
    experiment = experiment_meant(arguments.run)
    if experiment is not None:
        name, stopped = experiment.id, experiment.stop()
        events = follow_experiment(experiment)
    else:
        run = find_run(arguments.run)
        name, stopped, events = run.id, _stop_run(run), follow_job(run)
    if stopped:
        for _ in events:
            pass
    text = f"{name} {'stopped' if stopped else 'was not running'}"
    print_answer({"id": name, "stopped": stopped}, text, json=arguments.json)
    return 0
