"""`stop`: stop a live run or experiment; finished passes and rounds are kept."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from sysbench.core.runs.run_directory import RunDirectory, find_run
from sysbench.tui.commands.arguments import add_run_argument, examples
from sysbench.tui.commands.output import print_answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ask the supervisor of a run or of an experiment to stop. Finished passes and rounds\n"
        "are kept."
    )
    parser.epilog = examples(("sysbench-tui stop last", ""))
    add_run_argument(parser)


def _stop(run: RunDirectory) -> bool:
    """Stop the run; wait for the supervisor of a new run first."""
    while run.is_beginning():
        if run.stop():
            return True
        time.sleep(0.2)
    return run.stop()


def main(arguments: argparse.Namespace) -> int:
    """Stop the run and wait for its end; always return 0."""
    from sysbench.core.experiments.experiment import experiment_meant  # lazy: --help stays fast
    from sysbench.core.experiments.experiment_runner import (
        follow_experiment,  # lazy: --help stays fast
    )
    from sysbench.tui.commands.job_actions import follow_job  # lazy: --help stays fast

    events: Iterator[object]
    experiment = experiment_meant(arguments.run)
    if experiment is not None:
        name, stopped = experiment.id, experiment.stop()
        events = follow_experiment(experiment)
    else:
        run = find_run(arguments.run)
        name, stopped, events = run.id, _stop(run), follow_job(run)
    if stopped:
        for _ in events:
            pass
    text = f"{name} {'stopped' if stopped else 'was not running'}"
    print_answer({"id": name, "stopped": stopped}, text, json=arguments.json)
    return 0
