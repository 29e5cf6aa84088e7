"""Arguments of the commands that list, show, compare and delete what was measured."""

from __future__ import annotations

import argparse

from sysbench.core.tables.sections import INSPECTED, SECTIONS
from sysbench.tui.commands.arguments import (
    RUN_HELP,
    add_brief,
    add_file_choice,
    add_flag,
    add_no_pager,
    add_run_argument,
    add_table_formats,
    add_tree_options,
    add_wide,
    complete_with,
    examples,
    output_path,
    parse_count,
    share_above_zero,
    share_of_one,
    size_bytes,
)


def declare_list(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List runs. With words, only runs whose id, model, settings, name or note contain all of\n"
        "them."
    )
    parser.epilog = examples(
        ("sysbench-tui list", ""),
        ("sysbench-tui list large bf16", "only these"),
        ("sysbench-tui list --json | jq '.rows[0].median_ms'", ""),
        ("sysbench-tui list --trash", "runs that `rm` or the Library deleted"),
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="show runs with all these words")
    parser.add_argument("-n", "--limit", type=parse_count, metavar="N", help="show the newest N")
    add_wide(parser, "the list, and show all columns")
    add_flag(parser, "--trash", "list the deleted runs instead")


def declare_show(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the report of a run. --section prints every row of one section, and --wide does\n"
        "not truncate names. Instead of a run you can name a file that `inspect` reads."
    )
    parser.epilog = examples(
        ("sysbench-tui show last", ""),
        ("sysbench-tui show last --section kernels --wide | grep softmax", ""),
        ("sysbench-tui show last --section tree --depth 4 --min-share 1%", ""),
        ("sysbench-tui show last --section tree --match 'attention.*exp'", ""),
        ("sysbench-tui show last --section kernels --top 5 --fields name,share,calls", ""),
        ("sysbench-tui show 20261121-1204 --json", "the record"),
    )
    add_run_argument(parser)
    parser.add_argument("--section", choices=SECTIONS, help="print only this section, in full")
    parser.add_argument(
        "--row",
        metavar="KEY",
        help="print all about one row; `--section NAME --json` has the `key` of each",
    )
    add_wide(parser, "a section")
    add_brief(parser)
    add_no_pager(parser)
    add_file_choice(parser)
    add_tree_options(parser)


OF_FILES = ("findings", *INSPECTED)

RANKS = "ranks"


def declare_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Analyse a trace of torch.profiler (Chrome's .json or Perfetto's .pftrace, also packed),\n"
        "a CUDA memory snapshot (pickle) or an nsys export (SQLite). The format is detected from\n"
        "the content. A separate process with a memory limit decodes the file, and the result is\n"
        "cached.\n"
        "For a folder with one file per rank it compares the ranks; their clocks are aligned\n"
        "by common collectives."
    )
    parser.epilog = examples(
        ("sysbench-tui inspect trace.json.gz", ""),
        ("sysbench-tui inspect trace.json.gz --section tree --depth 4", ""),
        ("sysbench-tui inspect trace.json.gz --section steps", ""),
        ("sysbench-tui inspect trace.json.gz --steps 2-5", ""),
        ("sysbench-tui inspect trace.json.gz --section roofline --peak 989.4,3350", ""),
        ("sysbench-tui inspect snapshot.pickle --json | jq .memory.ledger", ""),
        ("sysbench-tui inspect report.sqlite --section kernels --csv > kernels.csv", ""),
        ("sysbench-tui inspect run.json.gz --capture capture.json.gz", "for CUDA graphs"),
        ("sysbench-tui inspect traces/ --merged all.json.gz", ""),
        ("sysbench-tui export trace.json.gz csv", "a CSV file for each table"),
    )
    file = parser.add_argument(
        "file", metavar="FILE", help="a file, or a folder of ranks; never modified"
    )
    complete_with(file, "file")
    parser.add_argument(
        "--section", choices=(*OF_FILES, RANKS), help="print only this section, in full"
    )
    add_table_formats(parser)
    add_wide(parser, "a section")
    add_brief(parser)
    add_no_pager(parser)
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="peak TFLOP/s and GB/s of the device, for the roofline (default: table of GPUs)",
    )
    parser.add_argument(
        "--memory-limit",
        type=size_bytes,
        default=0,
        metavar="SIZE",
        help="memory limit for decoding (default: half of this machine's, at most 16GiB)",
    )
    add_file_choice(parser)
    parser.add_argument(
        "--merged",
        type=output_path,
        metavar="OUT",
        help="for a folder: also write one merged trace on one clock, for Perfetto "
        "(.json or .json.gz)",
    )
    add_tree_options(parser)


DEPTH = 2

MIN_SHARE = 0.02


def declare_compare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare B with A: verdict on the step time, peak memory, settings that differ, and the\n"
        "change of the traced step and of the peak, row by row. The verdict needs several\n"
        "processes: `run --repeat` measures them, `ab` alternates both specs. Each side is a run,\n"
        "or a file that `inspect` reads."
    )
    parser.epilog = examples(
        ("sysbench-tui compare 1204 1211", "parts of ids are enough"),
        ("sysbench-tui compare 1204 1211 --depth 4 --min 0.1%", "down to the kernels"),
        ("sysbench-tui compare before.json.gz after.json.gz", "two imported traces"),
        ("sysbench-tui compare 1204 trace.json.gz --json | jq .difference.summary", ""),
        ("sysbench-tui compare 1204 1211 -o difference.html", "one page that can be sent"),
        ("sysbench-tui compare 1204 1211 --gate 3%", "for scripts: is B more than 3 % slower?"),
    )
    a = parser.add_argument("a", metavar="A", help=f"{RUN_HELP}; or a file")
    b = parser.add_argument("b", metavar="B", help="the run or file to compare with A")
    complete_with(a, "run")
    complete_with(b, "run")
    add_table_formats(parser)
    output = parser.add_argument(
        "-o",
        "--output",
        type=output_path,
        metavar="FILE",
        help="write the report to a file: .html a page for any browser, .svg a picture of this "
        "text, .md Markdown",
    )
    complete_with(output, "file")
    add_flag(parser, "--force", "overwrite an existing file")
    add_no_pager(parser)
    add_brief(parser)
    parser.add_argument(
        "--depth",
        type=parse_count,
        metavar="N",
        help=f"show N levels of rows: category, module, operator, kernel; category, phase, stack "
        f"(default: {DEPTH}; all for --csv and --md)",
    )
    parser.add_argument(
        "--min",
        type=share_of_one,
        metavar="P",
        help=f"combine rows that make up less of all changes (default: {MIN_SHARE:.0%}%; 0 for "
        "--csv and --md; with --json 200 rows of each tree, and 0 prints all)",
    )
    parser.add_argument(
        "--gate",
        type=share_of_one,
        metavar="MARGIN",
        help="exit with 3 if B is slower than A by more than this, 4 if that is not decidable: 3%%",
    )
    parser.add_argument(
        "--smallest",
        type=share_above_zero,
        metavar="P",
        help="smallest difference that matters to the verdict (default: 1%%, or that of the "
        "experiment that measured both)",
    )


def declare_rm(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Move runs to the trash; --restore brings them back. A live run is never deleted. A run\n"
        "that an experiment, a study or a baseline refers to requires --force. --empty deletes\n"
        "the trash permanently."
    )
    parser.epilog = examples(
        ("sysbench-tui rm 20261121-1204", ""),
        ("sysbench-tui rm --restore last", "restore the last deleted run"),
        ("sysbench-tui list --trash", "list deleted runs"),
        ("sysbench-tui rm --empty", "free the disk"),
    )
    runs = parser.add_argument("runs", metavar="RUN", nargs="*", help=RUN_HELP)
    complete_with(runs, "run")
    add_flag(parser, "--force", "delete even if something refers to it")
    add_flag(parser, "--restore", "bring deleted runs back instead")
    add_flag(parser, "--empty", "permanently delete the contents of the trash")


def declare_top(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the machine now: GPUs with load, memory, power, clocks and what lowers them; the\n"
        "processes on each; CPU, memory and disks of the host; what ran beside the last run.\n"
        "On a terminal it opens the workstation at this screen; in a pipe it prints once."
    )
    parser.epilog = examples(
        ("sysbench-tui top", "the screen; it is also F9"),
        ("sysbench-tui top --once", "print once"),
        ("sysbench-tui top --json | jq '.gpus.rows[].utilization'", ""),
    )
    add_flag(parser, "--once", "print once, also on a terminal")
    parser.add_argument(
        "-n",
        "--limit",
        type=parse_count,
        metavar="N",
        help="list at most N processes of the host (default: 10, with --json 30)",
    )
    add_wide(parser, "the tables")


def declare_schema(parser: argparse.ArgumentParser) -> None:
    from sysbench.tui.commands.registry import COMMANDS  # lazy: import cycle

    parser.description = (
        "Print the JSON Schema of what a command prints with --json. Every document has `schema`,\n"
        "`command` and `version`; a list is `rows`, with `total` and `truncated`; what cannot be\n"
        "answered from a run or file is `cannot_answer`, with the reason and the command that\n"
        "records it. Keys may be added, so a reader ignores those that it does not know."
    )
    parser.epilog = examples(
        ("sysbench-tui schema show", ""),
        ("sysbench-tui schema inspect > inspect.schema.json", "for a validator"),
    )
    parser.add_argument("name", metavar="COMMAND", choices=tuple(COMMANDS), help="its name")


def declare_mcp(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Answer a client of the Model Context Protocol: one JSON-RPC message a line on standard\n"
        "input and output, until the input ends. The tools are commands that read, with the\n"
        "command line's options and answers. An answer above 32 KiB is shortened: it has\n"
        "`truncated` and, as `rest`, the command that prints all. --json prints the tools instead."
    )
    parser.epilog = examples(
        ("sysbench-tui mcp", "what a client starts"),
        ("sysbench-tui mcp --json | jq -r '.rows[].name'", "the tools"),
        ("sysbench-tui mcp --allow-run", "also measure, stop, export and delete"),
    )
    add_flag(
        parser,
        "--allow-run",
        "also offer the commands that start programs, write files or delete runs",
    )
