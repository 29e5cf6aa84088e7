"""Every command's arguments and help. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from ...core.export.exports import EXPORTS
from ...core.formatting import parse_bytes
from ...core.record.blocks import DEFAULT_PASSES, STEP_PASSES
from ...core.tables.sections import INSPECTED, SECTIONS
from .spec_keys import spec_keys
from .study_arguments import add_study_options

_RUN_HELP = "id of a run, a unique part of it, `last`, or the path of its directory"
_EXIT_CODES = "exit codes: 0 done, 1 a run failed, 2 bad input, 130 cancelled"

# Generic for type checkers only.
_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class _Version(argparse.Action):
    """Prints the version; the 50 ms that metadata takes are spent only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"sysbench-tui {version('sysbench-tui')}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="sysbench-tui",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Where a transformer's time and memory go on this machine.\n"
        "Without a command: the workstation, in this terminal.",
        epilog=_examples(
            ("sysbench-tui", "open the workstation"),
            ("sysbench-tui run --set model=tiny", "measure, print the tables"),
            ("sysbench-tui show last", "print the newest run's tables again"),
            ("sysbench-tui doctor", "what is missing here, and what it costs"),
        )
        + f"\n{_EXIT_CODES}",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.set_defaults(module="workstation")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(commands)
    _add_estimate(commands)
    _add_study(commands)
    _add_list(commands)
    _add_show(commands)
    _add_compare(commands)
    _add_export(commands)
    _add_serve(commands)
    _add_inspect(commands)
    _add_attach(commands)
    _add_stop(commands)
    _add_doctor(commands)
    return parser


def _add_study(commands: _Commands) -> None:
    parser = _command(
        commands,
        "study",
        "fill the table of an experiment: a grid of runs, stopped and resumed at will",
        "Run every cell of a study that has no value yet, each in processes of its own, and print\n"
        "its tables. What was finished is kept; OOM is a value. docs/studies.md has the format.",
        _examples(
            ("sysbench-tui study list", "the experiments that are known"),
            ("sysbench-tui study precision --variant small", "on a CPU"),
            ("sysbench-tui study e2e --only model=large --dry-run", "what it would take"),
            ("sysbench-tui study show e2e --format html -o e2e.html", ""),
        ),
    )
    add_study_options(parser)


def _add_run(commands: _Commands) -> None:
    parser = _command(
        commands,
        "run",
        "measure a spec: one fresh process per pass, then the tables",
        "Measure a spec. Each pass is a process of its own; progress goes to stderr, the\n"
        "report (or with --json the record, as one JSON document) to stdout.",
        _examples(
            ("sysbench-tui run", "the default spec, all passes"),
            ("sysbench-tui run --set model=cs336-2025/small --set precision=bf16", ""),
            ("sysbench-tui run mine.toml --set batch=8 --passes timing", "a file, one change"),
            ("sysbench-tui run --json > record.json", "for scripts"),
            ("sysbench-tui run --detach", "return at once; `attach last` follows it"),
        )
        + f"\n\n{spec_keys()}\n\n{_EXIT_CODES}",
    )
    _add_spec(parser)
    parser.add_argument(
        "--passes",
        metavar="LIST",
        help=f"passes to run, with commas (default: {','.join(DEFAULT_PASSES)}; there is also "
        f"{', '.join(name for name in STEP_PASSES if name not in DEFAULT_PASSES)})",
    )
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="dense peak of the device in this precision, and its memory's bandwidth: for MFU "
        "and shares of the roof (default: the table of GPUs, and what the device says)",
    )
    parser.add_argument("--detach", action="store_true", help="start it and return at once")
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )


def _add_estimate(commands: _Commands) -> None:
    parser = _command(
        commands,
        "estimate",
        "parameters, FLOPs and peak memory of a spec, without running it",
        "Predict a spec: nothing is measured. The closed form needs no torch and takes a\n"
        "millisecond; --exact plays the step on tensors without memory, in a process of its own.\n"
        "A CUDA device need not be here: device=cuda with --capacity asks for another machine.",
        _examples(
            ("sysbench-tui estimate --set model=cs336-2025/xl --set batch=4", ""),
            ("sysbench-tui estimate --exact --set model=10B --set device=cuda", "by phase"),
            ("sysbench-tui estimate --set device=cuda --fit batch --capacity 24GiB", ""),
            ("sysbench-tui estimate --table context=128,256,512 --table precision=fp32,bf16", ""),
            ("sysbench-tui estimate mine.toml --json", "for scripts"),
        )
        + "\n\nThe keys of --set are listed by `sysbench-tui run --help`.",
    )
    _add_spec(parser)
    parser.add_argument("--exact", action="store_true", help="by the real code on meta tensors")
    parser.add_argument(
        "--capacity", metavar="SIZE", help="to fit into, such as 24GiB (default: the device's)"
    )
    parser.add_argument(
        "--peak", metavar="TFLOPS[,GB/S]", help="of the device, for the roofline time of --exact"
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--fit", choices=("batch", "context"), help="the largest that fits")
    asked.add_argument(
        "--table",
        action="append",
        metavar="KEY=VALUE,…",
        help="a prediction for every value; may be repeated, for every combination",
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--md", action="store_true", help="the tables in Markdown")
    printed.add_argument("--csv", action="store_true", help="the tables as CSV, not rounded")


def _add_list(commands: _Commands) -> None:
    parser = _command(
        commands,
        "list",
        "all runs of this machine, newest first",
        "List runs. Words filter: every one must occur in the run's id, model or settings.",
        _examples(
            ("sysbench-tui list", ""),
            ("sysbench-tui list large bf16", "only these"),
            ("sysbench-tui list --json | jq '.[0].median_ms'", ""),
        ),
        module="list",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="show runs with all these words")
    parser.add_argument("-n", "--limit", type=_count, metavar="N", help="show the newest N")


def _add_show(commands: _Commands) -> None:
    parser = _command(
        commands,
        "show",
        "the report of a run, or one section in full",
        "Print what a run found. A section in full has every row; into a pipe its names\n"
        "are not cut.",
        _examples(
            ("sysbench-tui show last", ""),
            ("sysbench-tui show last --section kernels | grep softmax", ""),
            ("sysbench-tui show last --section tree --depth 4 --min-share 1%", ""),
            ("sysbench-tui show last --section tree --match 'attention.*exp'", ""),
            ("sysbench-tui show 20261121-1204 --json", "the record"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help=_RUN_HELP)
    parser.add_argument("--section", choices=SECTIONS, help="print only this, in full")
    _add_tree(parser)


def _add_inspect(commands: _Commands) -> None:
    parser = _command(
        commands,
        "inspect",
        "anyone's chrome trace, memory snapshot or nsys export, with our tables",
        "Read a file that any program wrote: a chrome trace of torch.profiler (.json, .json.gz),\n"
        "a snapshot of CUDA's allocator (pickle), or an nsys export to SQLite. What it is, its\n"
        "content tells. It is decoded in a process of its own with a memory limit; a second look\n"
        "is instant.",
        _examples(
            ("sysbench-tui inspect trace.json.gz", ""),
            ("sysbench-tui inspect trace.json.gz --section tree --depth 4", ""),
            ("sysbench-tui inspect trace.json.gz --section roofline --peak 989.4,3350", ""),
            ("sysbench-tui inspect snapshot.pickle --json | jq .memory.ledger", ""),
            ("sysbench-tui inspect report.sqlite --section kernels --csv > kernels.csv", ""),
        )
        + "\n\nexit codes: 0 shown, 2 not readable or no such section, 130 cancelled",
    )
    parser.add_argument("file", metavar="FILE", help="the file; only read, never changed")
    parser.add_argument("--section", choices=INSPECTED, help="print only this, in full")
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--md", action="store_true", help="the tables in Markdown")
    printed.add_argument("--csv", action="store_true", help="the tables as CSV, not rounded")
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="of the device, for shares of the roof (default: the table of GPUs)",
    )
    parser.add_argument(
        "--memory-limit",
        type=_bytes,
        default=0,
        metavar="SIZE",
        help="what decoding may take (default: half of the memory here, at most 16GiB)",
    )
    parser.add_argument(
        "--device",
        type=int,
        metavar="N",
        help="of a memory snapshot of several devices, whose tables (default: the busiest)",
    )
    _add_tree(parser)


def _add_compare(commands: _Commands) -> None:
    parser = _command(
        commands,
        "compare",
        "two runs side by side: faster, slower, same, or not decidable",
        "Compare run B against run A: medians with their 95 % intervals, peak memory, and\n"
        "every factor in which the two specs differ.",
        _examples(("sysbench-tui compare 1204 1211", "parts of ids are enough")),
    )
    parser.add_argument("a", metavar="A", help=_RUN_HELP)
    parser.add_argument("b", metavar="B", help="the run that is compared against A")


def _add_export(commands: _Commands) -> None:
    parser = _command(
        commands,
        "export",
        "carry a run's artifacts and tables away",
        "Write one export of a run:\n"
        + "\n".join(f"  {kind:<11} {export.purpose}" for kind, export in EXPORTS.items()),
        _examples(
            ("sysbench-tui export last perfetto", ""),
            ("sysbench-tui export last csv -o tables/", ""),
            ("sysbench-tui export last nsys -o profile.sh && bash profile.sh", ""),
        ),
    )
    parser.add_argument("run", metavar="RUN", help=_RUN_HELP)
    parser.add_argument("kind", metavar="KIND", choices=EXPORTS, help="one of the above")
    parser.add_argument("-o", "--output", metavar="PATH", help="file or folder (default: here)")
    parser.add_argument("--force", action="store_true", help="replace what is there already")


def _add_serve(commands: _Commands) -> None:
    parser = _command(
        commands,
        "serve",
        "show a run's page in the browser of your own machine",
        "Serve a run's page and artifacts on loopback, behind a token, and print the ssh line\n"
        "that brings them to where you sit. Ctrl+C ends it.",
        _examples(("sysbench-tui serve last", ""), ("sysbench-tui serve last --port 8000", "")),
    )
    parser.add_argument("run", metavar="RUN", help=_RUN_HELP)
    parser.add_argument("--port", type=int, default=0, help="where to listen (default: any)")


def _add_attach(commands: _Commands) -> None:
    parser = _command(
        commands,
        "attach",
        "follow a live run until it ends, then print its report",
        "Follow a run from any terminal. Ctrl+C leaves the run going.",
        _examples(("sysbench-tui attach last", "")),
    )
    parser.add_argument("run", metavar="RUN", help=_RUN_HELP)


def _add_stop(commands: _Commands) -> None:
    parser = _command(
        commands,
        "stop",
        "end a live run; what it has measured is kept",
        "Ask a run's supervisor to end it. Passes that are finished stay in the record.",
        _examples(("sysbench-tui stop last", "")),
    )
    parser.add_argument("run", metavar="RUN", help=_RUN_HELP)


def _add_doctor(commands: _Commands) -> None:
    _command(
        commands,
        "doctor",
        "what is here, what is missing, and what each missing thing costs",
        "Look at the GPU, driver, torch, nsys, permissions, the terminal and the home.",
        _examples(("sysbench-tui doctor", "")),
    )


def _add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec", nargs="?", metavar="SPEC.toml|PROFILE", help="a TOML file or a saved profile"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one key of the spec; may be repeated",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="stand for a smaller device, such as 24GiB: the same as --set memory_limit=SIZE",
    )


def _add_tree(parser: argparse.ArgumentParser) -> None:
    tree = parser.add_argument_group("of --section tree")
    tree.add_argument("--depth", type=_count, metavar="N", help="so many levels below the step")
    tree.add_argument(
        "--match",
        metavar="REGEX",
        help="only nodes in whose path it occurs: module, /operator, /kernel",
    )
    tree.add_argument(
        "--min-share", metavar="P", help="sum up what takes less of the step: 1%% or 0.01"
    )


def _command(
    commands: _Commands, name: str, summary: str, description: str, epilog: str, module: str = ""
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(module=module or name)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, 0 or more")
    return int(text)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _examples(*lines: tuple[str, str]) -> str:
    width = max((len(command) for command, note in lines if note), default=0)
    rows = (f"  {command:<{width}}  {note}".rstrip() for command, note in lines)
    return "examples:\n" + "\n".join(rows)
