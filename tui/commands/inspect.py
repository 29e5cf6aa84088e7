"""`inspect`: anyone's chrome trace, memory snapshot or nsys export, with our tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path

import msgspec

from ...core.analysis.costs.roofline import roof_points
from ...core.errors import NotFoundError
from ...core.export.inspection import inspection_tables, tables_as_markdown
from ...core.export.text_formats import table_as_csv, tables_as_tidy_csv
from ...core.inspection.decoding import Decoding
from ...core.inspection.foreign_roof import under_peak
from ...core.inspection.inspection import Inspection
from ...core.inspection.messages import Progressed
from ...core.machine.peaks import parse_peak
from ...core.tables.cells import literal
from ...core.tables.kernels import top_kernels
from ...core.tables.memory import largest_table
from ...core.tables.sections import SECTIONS
from ..text import KIND_WORDS, decoding_words, file_words
from .report.kernel_sections import tree_of, tree_options
from .report.layout import Line, note, prose, titled
from .report.live_progress import bar
from .report.output import page_width, print_json, print_lines, write
from .report.report import (
    KERNEL_ROWS,
    LARGEST_ROWS,
    category_section,
    full_table,
    kernel_lines,
    kernel_warnings,
    memory_section,
    nsys_section,
)
from .report.sections import section_as_json, section_lines

CLEAR_LINE = "\r\x1b[K"


@contextmanager
def decoding_progress() -> Iterator[Callable[[Progressed], None]]:
    """Gives what shows the progress; the line is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return

    def show(step: Progressed) -> None:
        filled = "" if step.share is None else f"{bar(step.share)}  "
        _write(f"{CLEAR_LINE}  {filled}{decoding_words(step)}")

    try:
        yield show
    finally:
        _write(CLEAR_LINE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def inspection_lines(inspection: Inspection, width: int) -> Iterator[Line]:
    """What kind of file it is, then everything that it holds, at most ``width`` cells wide."""
    yield [(literal(inspection.file), "bold")]  # whole, so that it can be copied
    yield from prose(file_words(inspection), width)
    if kernels := inspection.kernels:
        table = top_kernels(kernels, KERNEL_ROWS)
        yield from kernel_warnings(kernels, width)
        yield from titled(table.title, kernel_lines(table, width, total=True))
        yield from note(map(literal, kernels.missing.values()), width)
        yield from category_section(kernels, width)
    if nsys := inspection.nsys:
        yield from nsys_section(nsys, width)
    if memory := inspection.memory:
        largest = largest_table(memory)
        shown = msgspec.structs.replace(largest, rows=largest.rows[:LARGEST_ROWS])
        yield from memory_section(memory, width)
        yield from full_table(shown, width, drop=("module", "phase", "category", "died_ms"))


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
    if section is None:
        return
    block = SECTIONS[section].block
    if getattr(found, block) is None:
        reason = found.missing.get(block, f"it is a {KIND_WORDS[found.kind]}")
        raise NotFoundError(f"no {section} in {found.file}: {reason}")
    if section == "roofline" and found.kernels and not roof_points(found.kernels):
        reason = found.kernels.missing.get("flops", "no operator's bytes are known")
        raise NotFoundError(f"no {section} in {found.file}: {reason}")
