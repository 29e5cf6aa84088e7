"""`show`: the report of a run, or one section in full."""

from __future__ import annotations

import argparse
from itertools import dropwhile

from ...core.runs.builder import settled_record
from ...core.runs.directory import find_run
from .report.ending import full_report
from .report.kernel_sections import tree_options
from .report.output import page_width, print_json, print_lines
from .report.sections import section_as_json, section_lines


def main(arguments: argparse.Namespace) -> int:
    """Always 0 when the run could be read, however it ended."""
    options = tree_options(arguments)
    run = find_run(arguments.run)
    record = settled_record(run)
    section = arguments.section
    if arguments.json:
        print_json(section_as_json(run, record, section, options) if section else record)
    elif section:
        width, page = page_width(cut=False), page_width()
        lines = section_lines(run, record, section, width, page, options)
        print_lines(dropwhile(lambda line: not line, lines))
    else:
        print_lines(full_report(run, record, page_width()))
    return 0
