"""`ab`: two specs measured in turn, by fresh processes, until the verdict stands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.errors import SpecError
from sysbench.tui.commands.arguments import (
    add_settings,
    complete_with,
    examples,
    share_above_zero,
    share_of_one,
)
from sysbench.tui.commands.output import print_json, say

if TYPE_CHECKING:
    from sysbench.core.experiments.experiment import ExperimentDirectory

MAX_MINUTES = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two specs, the limits, the gate, and the options of the start."""
    parser.description = (
        "Measure A and B in fresh processes, in blocks of four rounds (ABBA or BAAB at random),\n"
        "until B is faster, slower, or the same within the smallest difference that matters.\n"
        "The plan and the progress go to stderr, the report to stdout. What was measured is kept:\n"
        "both sides are ordinary runs, and an experiment that was stopped goes on with --resume."
    )
    parser.epilog = examples(
        ("sysbench-tui ab eager.toml compiled.toml", "two files"),
        ("sysbench-tui ab last --set-b compile=default", "the newest run's spec, one change"),
        ("sysbench-tui ab tiny", "A against A: what the machine's noise does"),
        ("sysbench-tui ab base.toml new.toml --gate 3% --md", "for a pull request"),
        ("sysbench-tui ab --resume last", "go on with what was stopped or killed"),
    )
    spec_help = "a TOML file, a saved profile, a model, or a run (its id, a part of it, `last`)"
    a = parser.add_argument(
        "a", nargs="?", metavar="A", help=f"{spec_help}; a run's spec is measured again"
    )
    b = parser.add_argument(
        "b", nargs="?", metavar="B", help="the spec that is judged (default: A)"
    )
    complete_with(a, "side")
    complete_with(b, "side")
    meaning = "change one key of both specs; repeatable (`run --help` lists the keys)"
    add_settings(parser, "--set", meaning)
    add_settings(parser, "--set-b", "change one key of B only; repeatable")
    parser.add_argument(
        "--python-b", metavar="PATH", help="another Python for B, such as one with another torch"
    )
    parser.add_argument(
        "--smallest",
        type=share_above_zero,
        metavar="SHARE",
        help=f"smallest difference that matters (default: {100 * MIN_EFFECT:g}%%)",
    )
    parser.add_argument(
        "--max-minutes",
        type=_minutes,
        metavar="M",
        help=f"start no block of four rounds after that (default: {MAX_MINUTES:g})",
    )
    parser.add_argument(
        "--gate",
        type=share_of_one,
        metavar="SHARE",
        help="stop once B is known to be slower by more than this, or not to be: exit 3 or 0",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the order of the rounds")
    parser.add_argument("--resume", metavar="ID", help="go on with an experiment, or `last`")
    parser.add_argument("--detach", action="store_true", help="start it and return at once")
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )
    parser.add_argument("--md", action="store_true", help="the report in Markdown")


def main(arguments: argparse.Namespace) -> int:
    """Measure; the exit code is that of the gate, else 0 for any verdict."""
    from sysbench.core.experiments.experiment_runner import NO_WAIT, run_experiment
    from sysbench.core.runs.job_directory import Cancellation
    from sysbench.tui.commands.ab_report import print_experiment
    from sysbench.tui.commands.output import cancelled_by_signals
    from sysbench.tui.commands.progress import ExperimentFold, Progress

    directory = _resumed(arguments) if arguments.resume else _created(arguments)
    if arguments.detach:
        pid = directory.start(*[NO_WAIT] * arguments.no_wait)
        experiment = directory.experiment()
        if arguments.json:
            runs = {"a": experiment.a, "b": experiment.b}
            print_json({"id": directory.id, "pid": pid, "path": str(directory.path), **runs})
        else:
            say(f"{directory.id} started, process {pid}")
            say(f"follow it with `sysbench-tui attach {directory.id}`, end it with `stop`")
        return 0
    cancel = Cancellation()
    fold = ExperimentFold(directory.experiment())
    with cancelled_by_signals(cancel), Progress(fold, json=arguments.json) as progress:
        for item in run_experiment(directory, wait=not arguments.no_wait, cancel=cancel):
            progress.show(item)
    return print_experiment(directory, json=arguments.json, markdown=arguments.md)


def attach_to(directory: ExperimentDirectory, *, json: bool) -> int:
    """Follow an experiment of another process until it stops; the exit code that it returns."""
    from sysbench.core.experiments.experiment_runner import follow_experiment
    from sysbench.tui.commands.ab_report import print_experiment
    from sysbench.tui.commands.progress import ExperimentFold, Progress

    try:
        with Progress(ExperimentFold(directory.experiment()), json=json) as progress:
            for item in follow_experiment(directory):
                progress.show(item)
    except KeyboardInterrupt:
        say(f"left {directory.id} running", to_stderr=True)
        raise
    return print_experiment(directory, json=json)


def _created(arguments: argparse.Namespace) -> ExperimentDirectory:
    """A new experiment, after its plan was printed."""
    from sysbench.core.experiments.experiment import create_experiment
    from sysbench.core.experiments.plan import plan_of
    from sysbench.core.spec.passes import check_passes
    from sysbench.tui.commands.ab_report import print_plan
    from sysbench.tui.commands.ab_sides import both_pythons, both_specs

    a, b = arguments.a, arguments.b
    pythons = both_pythons(a, b, arguments.python, arguments.python_b)
    spec_a, spec_b = both_specs(a, b, arguments.settings, arguments.settings_b, pythons)
    for spec in (spec_a, spec_b):
        check_passes(spec, ["timing"])
    minutes = MAX_MINUTES if arguments.max_minutes is None else arguments.max_minutes
    plan = plan_of(spec_a, spec_b, minutes)
    directory = create_experiment(
        spec_a,
        spec_b,
        smallest=MIN_EFFECT if arguments.smallest is None else arguments.smallest,
        gate=arguments.gate,
        max_minutes=minutes,
        seed=arguments.seed,
        plan=plan,
        pythons=pythons,
    )
    print_plan(directory, plan, spec_a, spec_b, quiet=arguments.json)
    return directory


def _resumed(arguments: argparse.Namespace) -> ExperimentDirectory:
    """The experiment of ``--resume``, with the limits that were given anew."""
    import msgspec

    from sysbench.core.experiments.experiment import find_experiment

    kept = {
        "A": arguments.a,
        "B": arguments.b,
        "--set": arguments.settings or None,
        "--set-b": arguments.settings_b or None,
        "--seed": arguments.seed,
        "--python": arguments.python,
        "--python-b": arguments.python_b,
    }
    for name, value in kept.items():
        if value is not None:
            raise SpecError(
                name, value, "left out: --resume keeps both specs, their order and Python"
            )
    directory = find_experiment(arguments.resume)
    given = {
        name: getattr(arguments, name)
        for name in ("smallest", "gate", "max_minutes")
        if getattr(arguments, name) is not None
    }
    if given and not directory.is_live():
        directory.write("experiment.json", msgspec.structs.replace(directory.experiment(), **given))
    return directory


def _minutes(text: str) -> float:
    """Minutes above 0."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: minutes above 0")
    return minutes
