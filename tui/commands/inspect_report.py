"""The output of `inspect` as lines: progress of decoding, then the file's tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from sysbench.core.inspection.inspection import Inspection, Progressed
from sysbench.core.tables.cells import literal
from sysbench.core.tables.kernel_tables import top_kernels
from sysbench.core.tables.memory_tables import largest_alike_table
from sysbench.tui.commands.layout import Line, blank, note, prose, table_lines, titled
from sysbench.tui.commands.progress import BAR_CELLS
from sysbench.tui.commands.report_sections import (
    collectives_section,
    host_sections,
    steps_section,
)
from sysbench.tui.commands.run_report import (
    KERNEL_ROWS,
    LARGEST_ROWS,
    category_section,
    finding_lines,
    full_table,
    kernel_warnings,
    memory_section,
    nsys_section,
)
from sysbench.tui.text import decoding_text, file_text
from sysbench.tui.widgets.traces import gauge

CLEAR_LINE = "\r\x1b[K"


@contextmanager
def decoding_progress() -> Iterator[Callable[[Progressed], None]]:
    """Yield a function that shows the progress on one line, which is cleared at the end."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return

    def show(step: Progressed) -> None:
        filled = "" if step.share is None else f"{gauge(step.share, BAR_CELLS)}  "
        _write(f"{CLEAR_LINE}  {filled}{decoding_text(step)}")

    try:
        yield show
    finally:
        _write(CLEAR_LINE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def inspection_lines(inspection: Inspection, width: int) -> Iterator[Line]:
    """The kind of file, then all its tables, at most ``width`` cells wide."""
    yield [(literal(inspection.file), "bold")]  # whole, so that it can be copied
    yield from prose(file_text(inspection), width)
    for finding in inspection.findings:
        yield blank()
        yield from finding_lines(finding, width)
    if kernels := inspection.kernels:
        if kernels.marked_steps:
            yield from steps_section(kernels.marked_steps, width)
        table = top_kernels(kernels, KERNEL_ROWS, placed=kernels.source == "kernels")
        yield from kernel_warnings(kernels, width)
        yield from titled(table.title, table_lines(table, width, total=True))
        told = {"kernels"} if kernels.lacks_kernels else set()  # by the warning above
        reasons = [why for key, why in kernels.missing.items() if key not in told]
        yield from note(map(literal, reasons), width)
        yield from category_section(kernels, width)
        if kernels.collectives:
            yield from collectives_section(kernels.collectives, width)
        yield from host_sections(kernels, width)
    if nsys := inspection.nsys:
        yield from nsys_section(nsys, width)
    if memory := inspection.memory:
        largest = largest_alike_table(memory)
        shown = msgspec.structs.replace(largest, rows=largest.rows[:LARGEST_ROWS])
        yield from memory_section(memory, width)
        yield from full_table(shown, width, drop=("block_bytes",))
