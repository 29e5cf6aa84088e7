"""`compare`: run B against run A."""

from __future__ import annotations

import argparse

from ...core.runs.directory import find_run
from .arguments import RUN_HELP, examples
from .report.output import page_width, print_json, print_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two runs."""
    parser.description = (
        "Compare run B against run A: the verdict on the step time, peak memory, and every\n"
        "factor in which the two specs differ. A verdict rests on processes, not on steps:\n"
        "`run --repeat` measures several, `ab` measures both specs in turn."
    )
    parser.epilog = examples(("sysbench-tui compare 1204 1211", "parts of ids are enough"))
    parser.add_argument("a", metavar="A", help=RUN_HELP)
    parser.add_argument("b", metavar="B", help="the run that is compared against A")


def main(arguments: argparse.Namespace) -> int:
    """Compare; 0 when both runs could be read: a slower run is an answer, not a failure."""
    from ...core.analysis.compare import compare
    from ...core.runs.ab.known import known_noise
    from ...core.runs.builder import load_record
    from .report.comparison import comparison_lines

    a, b = (load_record(find_run(name)) for name in (arguments.a, arguments.b))
    comparison = compare(a, b, known_noise(a, b))
    if arguments.json:
        print_json(comparison)
    else:
        print_lines(comparison_lines(comparison, page_width()))
    return 0
