"""Arguments of the commands that measure, follow and judge runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.record.blocks import DEFAULT_PASSES, STEP_PASSES
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.tui.commands.arguments import (
    RUN_HELP,
    add_brief,
    add_flag,
    add_no_wait,
    add_run_argument,
    add_settings,
    complete_with,
    examples,
    output_path,
    share_above_zero,
    share_of_one,
)
from sysbench.tui.commands.spec_arguments import add_spec_arguments, spec_keys


def declare_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure a spec. Each pass is a separate process; progress goes to stderr, the\n"
        "report (or with --json the record, as one JSON document) to stdout."
    )
    lines = examples(
        ("sysbench-tui run", "the default spec, all passes"),
        ("sysbench-tui run cs336-2025/small precision=bf16 context=512", "a model, two keys"),
        ("sysbench-tui run nano.py:make model.layers=4", "your own model"),
        ("sysbench-tui run mine.toml batch=8 --passes timing", "a file with one change"),
        ("sysbench-tui run --repeat 5", "time it in five fresh processes"),
        ("sysbench-tui run --json > record.json", "for scripts"),
        ("sysbench-tui run --detach", "return at once; `attach last` follows it"),
    )
    parser.epilog = f"{lines}\n\n{spec_keys()}"
    add_spec_arguments(parser)
    parser.add_argument(
        "--passes",
        metavar="LIST",
        help=f"passes to run, separated by commas (default: {','.join(DEFAULT_PASSES)}; also "
        f"available: {', '.join(name for name in STEP_PASSES if name not in DEFAULT_PASSES)})",
    )
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="dense peak of the device in this precision and its memory bandwidth, for MFU and "
        "roofline (default: rates of doctor --measure, else the device and the table of GPUs)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help=f"time the steps in N processes, 1 to {MAX_ROUNDS}; the confidence interval is then "
        "between processes (default: 1)",
    )
    add_flag(parser, "--detach", "start the run and return at once")
    add_no_wait(parser)


def declare_watch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run any command unchanged and record the steps of the training in it: waiting for input,\n"
        "forward, backward, optimizer, memory. Its output, exit code and signals are its own.\n"
        "Every Python process of it that imports torch is recorded; its code does not change."
    )
    parser.epilog = examples(
        ("sysbench-tui watch -- python train.py --lr 1e-4", ""),
        ("sysbench-tui watch -- torchrun --nproc-per-node 2 train.py", "two ranks"),
        ("sysbench-tui watch --pid 4711", "a process that runs already, Python 3.14 or later"),
        ("sysbench-tui attach last", "follow it from another terminal"),
        ("sysbench-tui show last --section job", "its steps"),
    )
    add_flag(parser, "--quiet", "print no report after the command has ended")
    add_flag(parser, "--report", "print the report to stderr even if that is not a terminal")
    add_brief(parser)
    parser.add_argument(
        "--window",
        metavar="STEP:COUNT",
        default="",
        help="trace COUNT steps after that step, for the tables of kernels; `window` does it later",
    )
    parser.add_argument(
        "--memory",
        metavar="STEP:COUNT",
        default="",
        help="count who holds memory in COUNT steps after that step, at the end of each phase",
    )
    parser.add_argument(
        "--step-on",
        metavar="MODULE:FUNCTION",
        default="",
        help="let each call of this function be a step, for loops without an optimizer",
    )
    parser.add_argument(
        "--pid",
        type=int,
        metavar="N",
        help="record the steps of this process from now on; Ctrl+C stops watching, not the process",
    )
    parser.add_argument("command_words", metavar="COMMAND", nargs=argparse.REMAINDER)


def declare_window(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trace the next steps of a command that `watch` started, with torch.profiler. The tables\n"
        "of kernels are in its report when it has ended. With --memory they are not traced: who\n"
        "holds memory is counted at the end of each phase."
    )
    parser.epilog = examples(
        ("sysbench-tui window last --steps 3", ""),
        ("sysbench-tui window last --memory 3", "a ledger, modules, and what grows"),
    )
    add_run_argument(parser)
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="steps to trace (default: 3)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        metavar="N",
        help="count who holds memory in the next N steps, instead of tracing them",
    )


FORMATS = ("md", "csv", "json", "html")


def declare_study(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; ``show`` and ``list`` are actions instead of a study's name."""
    parser.description = (
        "Run every cell of a study that has no value yet, each in fresh processes, and print\n"
        "its tables. Finished cells are kept; out of memory counts as a value.\n"
        "docs/studies.md describes the format."
    )
    parser.epilog = examples(
        ("sysbench-tui study list", "the known experiments"),
        ("sysbench-tui study precision --variant small", "on a CPU"),
        ("sysbench-tui study e2e --only model=large --dry-run", "forecast only"),
        ("sysbench-tui study show e2e --format html -o e2e.html", ""),
        ("sysbench-tui study e2e --slurm partition=gpu,gres=gpu:1,time=30", "one job per cell"),
    )
    name = parser.add_argument(
        "name",
        metavar="NAME|FILE",
        help="name of a study, or a TOML file; or the actions show NAME, list",
    )
    target = parser.add_argument("target", nargs="?", metavar="NAME", help="the study to show")
    complete_with(name, "study")
    complete_with(target, "study")
    parser.add_argument("--variant", default="", help="variant of the study, such as small")
    meaning = "replace an axis (values separated by commas) or a fixed key; repeatable"
    add_settings(parser, "--set", meaning)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="run only these values of an axis (separated by commas); repeatable",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="rounds of the whole grid; comparisons need 6 or more",
    )
    parser.add_argument(
        "--max-minutes", type=float, metavar="M", help="start no cell after M minutes"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        nargs="?",
        const="",
        metavar="KEY=VALUE,…",
        help="run each cell as a job of a Slurm array, with these options of sbatch; repeatable",
    )
    add_flag(parser, "--retry", "run failed cells once more")
    add_flag(
        parser,
        "--yes",
        "start a study of more than 10 minutes without asking; a pipe is never asked",
    )
    add_flag(parser, "--dry-run", "show the cells and a forecast, run nothing")
    parser.add_argument("--format", choices=FORMATS, default="", help="output format of show")
    parser.add_argument(
        "-o", "--output", type=output_path, metavar="PATH", help="file for the output of show"
    )
    add_flag(parser, "--force", "overwrite an existing file")


MAX_MINUTES = 15.0


def declare_ab(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure A and B in pairs of fresh processes that take turns, until B is faster, slower,\n"
        "or the same within the smallest difference that matters. The first of several steps in\n"
        "a turn is not counted: the caches hold the other process's data. Where both do not fit\n"
        "the device, one process measures at a time, in blocks of four (ABBA or BAAB at random).\n"
        "The plan and the progress go to stderr, the report to stdout. Both sides are ordinary\n"
        "runs, and --resume continues an experiment that was stopped.\n"
        "After --, A and B are two commands, and each time one runs to its end is a round: its\n"
        "figure is the median step that `watch` would record, or the wall time."
    )
    parser.epilog = examples(
        ("sysbench-tui ab eager.toml compiled.toml", "two files"),
        ("sysbench-tui ab last --set-b compile=default", "the newest run's spec, one change"),
        ("sysbench-tui ab tiny tiny", "A against A: shows the machine's noise"),
        ("sysbench-tui ab base.toml new.toml --gate 3% --md", "for a pull request"),
        ("sysbench-tui ab --resume last", "continue after a stop or a kill"),
        ("sysbench-tui ab -- 'python a.py' -- 'python b.py'", "two commands"),
    )
    spec_help = "a TOML file, a saved profile, a model, or a run (its id, a part of it, `last`)"
    a = parser.add_argument(
        "a", nargs="?", metavar="A", help=f"{spec_help}; a run's spec is measured again"
    )
    b = parser.add_argument(
        "b", nargs="?", metavar="B", help="spec to compare with A (default: A with --set-b)"
    )
    complete_with(a, "side")
    complete_with(b, "side")
    meaning = "change one key of both specs; repeatable (`run --help` lists the keys)"
    add_settings(parser, "--set", meaning)
    add_settings(parser, "--set-b", "change one key of B only; repeatable")
    parser.add_argument(
        "--python-b",
        metavar="PATH",
        help="Python interpreter for B, for example with another torch",
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
        help=f"start no pair or block of rounds after M minutes (default: {MAX_MINUTES:g})",
    )
    parser.add_argument(
        "--gate",
        type=share_of_one,
        metavar="SHARE",
        help="stop when B is known to be slower by more than this (exit 3) or not (exit 0)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="random seed for the order of the rounds"
    )
    add_flag(
        parser, "--one-at-a-time", "measure no pairs, but one process at a time in blocks of four"
    )
    parser.add_argument(
        "--metric",
        choices=("steps", "wall"),
        help="of two commands: median steps or wall times (default: steps if there are any)",
    )
    parser.add_argument("--resume", metavar="ID", help="continue this experiment, or `last`")
    add_flag(parser, "--detach", "start the experiment and return at once")
    add_no_wait(parser)
    add_flag(parser, "--md", "print the report as Markdown")
    add_brief(parser)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: minutes, above 0")
    return minutes


def declare_baseline(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Save a copy of a run's record, with its rounds, under a name. A baseline outlives its\n"
        "run; with --file it is a file for a repository or a CI cache."
    )
    parser.epilog = examples(
        ("sysbench-tui baseline save main last", "the newest run is now the baseline `main`"),
        ("sysbench-tui baseline save main last --force", "replace an older one"),
        ("sysbench-tui baseline save main last --file gate.json", "as a file of your own"),
        ("sysbench-tui baseline list", ""),
        ("sysbench-tui gate main", "measure its spec again and compare"),
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    save = _action(actions, "save", "copy a run's record under a name", named=True)
    add_run_argument(save)
    add_flag(save, "--force", "replace a baseline of that name")
    _add_file(save, "write it to this file instead of the home")
    _action(actions, "list", "all baselines of this home", named=False)
    show = _action(actions, "show", "one baseline: when, where, and its rounds", named=True)
    _add_file(show, "read it from this file instead of the home")
    _action(actions, "delete", "remove a baseline; runs are not deleted", named=True)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    *,
    named: bool,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary)
    # No default, so that `baseline --json list` and `baseline list --json` both work.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document"
    )
    if named:
        action = parser.add_argument("name", metavar="NAME", help="letters, digits, dots, dashes")
        complete_with(action, "baseline")
    return parser


def _add_file(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--file", type=Path, metavar="PATH", help=text)


MARGIN = 0.03


def declare_gate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare a run with a baseline: fail if its step is slower by more than a margin. Without\n"
        "RUN the baseline's spec is measured again, each round in a fresh process. A baseline of\n"
        "another machine or spec is reported as not comparable."
    )
    parser.epilog = examples(
        ("sysbench-tui gate main", "measure 6 rounds and compare"),
        ("sysbench-tui gate main --margin 2% --repeat 12", "a smaller margin takes more rounds"),
        ("sysbench-tui gate main last", "compare an existing run"),
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
        help="allowed slowdown (default: 3%%)",
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
        help="compare although this differs; repeatable",
    )
    add_flag(parser, "--md", "print Markdown, for a pull request")
    add_no_wait(parser)


def declare_attach(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Follow a run or an experiment of `ab` from any terminal. Ctrl+C stops following; the\n"
        "run goes on."
    )
    parser.epilog = examples(("sysbench-tui attach last", ""))
    add_run_argument(parser)


def declare_stop(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ask the supervisor of a run or of an experiment to stop. Finished passes and rounds\n"
        "are kept."
    )
    parser.epilog = examples(("sysbench-tui stop last", ""))
    add_run_argument(parser)
