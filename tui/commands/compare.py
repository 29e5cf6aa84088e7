"""`compare`: compare two runs or files."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import (
    RUN_HELP,
    add_brief,
    add_no_pager,
    add_table_formats,
    complete_with,
    examples,
    output_path,
    parse_count,
    share_above_zero,
    share_of_one,
)

DEPTH = 2
MIN_SHARE = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
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
        "--csv and --md)",
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
