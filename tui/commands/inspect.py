"""`inspect`: anyone's chrome trace, memory snapshot or nsys export, with our tables."""

from __future__ import annotations

import argparse
from itertools import dropwhile
from pathlib import Path

from ...core.analysis.costs.roofline import roof_points
from ...core.errors import NotFoundError
from ...core.export.inspection import inspection_tables, tables_as_markdown
from ...core.export.text_formats import table_as_csv, tables_as_tidy_csv
from ...core.inspection.decoding import Decoding
from ...core.inspection.foreign_roof import under_peak
from ...core.inspection.inspection import Inspection
from ...core.machine.peaks import parse_peak
from ..wording import KIND_WORDS
from .inspect_progress import decoding_progress
from .inspect_report import inspection_lines
from .kernel_sections import tree_of, tree_options
from .output import page_width, print_json, print_lines, write
from .sections import section_as_json, section_lines


def main(arguments: argparse.Namespace) -> int:
    """Always 0 when the file could be read."""
    options = tree_options(arguments)
    peak = parse_peak(arguments.peak) if arguments.peak else None
    decoding = Decoding(Path(arguments.file), arguments.memory_limit, arguments.device)
    with decoding_progress() as show:
        found = decoding.run(show)
    if peak:
        found = under_peak(found, peak)
    run, record, section = decoding.entry.as_run, found.as_record(), arguments.section
    _require(found, section)
    if arguments.csv or arguments.md:
        sections = inspection_tables(found, tree_of(run, record, options))
        tables = [
            one for name in ([section] if section else sections) for one in sections.get(name, ())
        ]
        if arguments.md:
            write(tables_as_markdown(tables))
        else:
            only = len(tables) == 1
            write((table_as_csv(tables[0]) if only else tables_as_tidy_csv(tables)).decode())
    elif arguments.json:
        print_json(section_as_json(run, record, section, options) if section else found)
    elif section:
        width, page = page_width(cut=False), page_width()
        lines = section_lines(run, record, section, width, page, options)
        print_lines(dropwhile(lambda line: not line, lines))
    else:
        print_lines(inspection_lines(found, page_width()))
    return 0


def _require(found: Inspection, section: str | None) -> None:
    """Refuse a section that the file has nothing for."""
    block = "kernels" if section in ("tree", "roofline") else section
    if block is not None and getattr(found, block) is None:
        reason = found.missing.get(block, f"it is a {KIND_WORDS[found.kind]}")
        raise NotFoundError(f"no {section} in {found.file}: {reason}")
    if section == "roofline" and found.kernels and not roof_points(found.kernels):
        reason = found.kernels.missing.get("flops", "no operator's bytes are known")
        raise NotFoundError(f"no {section} in {found.file}: {reason}")
