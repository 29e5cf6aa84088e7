"""What is in a foreign file, as lines: the report of a run without the run."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...core.inspection.inspection import Inspection
from ...core.tables.cells import literal
from ...core.tables.kernels import top_kernels
from ...core.tables.memory import largest_table
from ..wording import file_words
from .layout import Line, note, prose, titled
from .report import (
    KERNEL_ROWS,
    LARGEST_ROWS,
    category_section,
    full_table,
    kernel_lines,
    kernel_warnings,
    memory_section,
    nsys_section,
)


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
