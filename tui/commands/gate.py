"""`gate`: a run judged against a baseline."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.core.runs.run_directory import find_run
from sysbench.tui.commands.arguments import (
    RUN_HELP,
    complete_with,
    examples,
    share_above_zero,
    share_of_one,
)
from sysbench.tui.commands.output import page_width, print_json, print_lines, write_text

if TYPE_CHECKING:
    from sysbench.core.experiments.baselines import Baseline
    from sysbench.core.record.record import Record

MARGIN = 0.03
CANCELLED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the baseline, the run, and the margin."""
    parser.description = (
        "Judge a run against a baseline: may its step be slower by a margin? Without RUN the\n"
        "baseline's spec is measured again, each round in a fresh process. A baseline of another\n"
        "machine or spec is not comparable, and said to be so."
    )
    parser.epilog = examples(
        ("sysbench-tui gate main", "measure 6 rounds and judge them"),
        ("sysbench-tui gate main --margin 2% --repeat 12", "a smaller margin takes more rounds"),
        ("sysbench-tui gate main last", "judge a run that is there"),
        ("sysbench-tui gate main --file gate.json --md", "for a pull request"),
        ("sysbench-tui gate main --across torch", "after an upgrade of torch"),
    )
    name = parser.add_argument(
        "name", metavar="NAME", help="the baseline, see `sysbench-tui baseline`"
    )
    complete_with(name, "baseline")
    run = parser.add_argument(
        "run", metavar="RUN", nargs="?", help=f"{RUN_HELP} (default: measure the spec again)"
    )
    complete_with(run, "run")
    parser.add_argument(
        "--margin",
        type=share_of_one,
        default=MARGIN,
        metavar="P",
        help="slowdown that is allowed (default: 3%%)",
    )
    parser.add_argument(
        "--smallest",
        type=share_above_zero,
        metavar="P",
        help="smallest difference that matters to the verdict (default: 1%%)",
    )
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="rounds to measure without RUN (default: 6)"
    )
    parser.add_argument(
        "--file", type=Path, metavar="PATH", help="read the baseline from this file"
    )
    parser.add_argument(
        "--across",
        action="append",
        default=[],
        choices=("torch", "threads"),
        help="judge although this differs; may be repeated",
    )
    parser.add_argument("--md", action="store_true", help="Markdown for a pull request")
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )


def main(arguments: argparse.Namespace) -> int:
    """Judge; the gate's exit code, 130 if the measurement was cancelled."""
    from sysbench.core.compare.verdict import MIN_EFFECT
    from sysbench.core.errors import SpecError
    from sysbench.core.experiments.baselines import load_baseline
    from sysbench.core.experiments.gating import foreign_here, judge_here, judge_run
    from sysbench.core.runs.stored_records import load_record

    if arguments.run is not None and arguments.repeat is not None:
        raise SpecError("--repeat", arguments.repeat, "left out with RUN, which is measured")
    if arguments.json and arguments.md:
        raise SpecError("--md", True, "left out with --json")
    baseline = load_baseline(arguments.name, file=arguments.file)
    obstacles = []
    if arguments.run is not None:
        record: Record | None = load_record(find_run(arguments.run))
    else:
        foreign = foreign_here(baseline)
        obstacles = [row for row in foreign if row.name not in arguments.across]
        record = None if obstacles else _measured(arguments, baseline)
        if record is None and not obstacles:
            return CANCELLED
    judgement = (
        judge_here(baseline, arguments.margin, obstacles)
        if record is None
        else judge_run(
            baseline,
            record,
            arguments.margin,
            smallest=arguments.smallest or MIN_EFFECT,
            across=arguments.across,
        )
    )
    command = _command(arguments, record)
    if arguments.json:
        import msgspec

        print_json({**msgspec.to_builtins(judgement), "command": command})
    elif arguments.md:
        from sysbench.tui.commands.gate_tables import judgement_markdown

        write_text(judgement_markdown(judgement, command))
    else:
        from sysbench.tui.commands.gate_tables import judgement_lines

        print_lines(judgement_lines(judgement, command, page_width()))
    return judgement.gate.exit_code


def _measured(arguments: argparse.Namespace, baseline: Baseline) -> Record | None:
    """The record of a new run of the baseline's spec; None if it was cancelled."""
    from sysbench.core.compare.gate_rule import DEFAULT_ROUNDS
    from sysbench.core.runs.job_directory import Cancellation
    from sysbench.core.runs.run_directory import create_run
    from sysbench.core.runs.stored_records import load_record
    from sysbench.core.runs.supervisor import supervise
    from sysbench.tui.commands.output import cancelled_by_signals
    from sysbench.tui.commands.progress import Progress, RunFold

    repeat = DEFAULT_ROUNDS if arguments.repeat is None else arguments.repeat
    run = create_run(baseline.spec, ["timing"], repeat=repeat)
    cancel = Cancellation()
    with cancelled_by_signals(cancel), Progress(RunFold(), json=arguments.json) as progress:
        for event in supervise(run, wait=not arguments.no_wait, cancel=cancel):
            progress.show(event)
    record = load_record(run)
    return None if record.status == "cancelled" else record


def _command(arguments: argparse.Namespace, record: Record | None) -> str:
    """The command that judges again."""
    words = ["sysbench-tui", "gate", arguments.name]
    words += [record.id] if arguments.run and record else []
    words += ["--margin", f"{100 * arguments.margin:g}%"]
    if arguments.smallest is not None:
        words += ["--smallest", f"{100 * arguments.smallest:g}%"]
    if arguments.repeat is not None:
        words += ["--repeat", str(arguments.repeat)]
    if arguments.file is not None:
        words += ["--file", str(arguments.file)]
    for name in arguments.across:
        words += ["--across", name]
    return shlex.join(words)
