"""Tables of a record, by section and in reading order."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from sysbench.core.compare.comparison import BreakEven
from sysbench.core.record.record import Record
from sysbench.core.tables.compile_tables import compile_tables
from sysbench.core.tables.context import environment_table, findings_table, passes_table, spec_table
from sysbench.core.tables.host_tables import (
    annotations_table,
    calls_table,
    functions_table,
    steps_table,
)
from sysbench.core.tables.job_tables import job_tables
from sysbench.core.tables.kernel_tables import (
    category_table,
    collectives_table,
    copies_table,
    flops_table,
    kernel_table,
    question_table,
    roofline_table,
)
from sysbench.core.tables.layer_tables import layer_tables
from sysbench.core.tables.memory_tables import memory_tables
from sysbench.core.tables.nsys_tables import nsys_tables, record_tables
from sysbench.core.tables.numerics_tables import numerics_tables
from sysbench.core.tables.oom_tables import oom_tables
from sysbench.core.tables.ranks_tables import distributed_tables
from sysbench.core.tables.sections import SECTIONS
from sysbench.core.tables.table import Table
from sysbench.core.tables.timing_tables import (
    rounds_table,
    speed_table,
    telemetry_table,
    timing_table,
)
from sysbench.core.tables.tree_rows import tree_table
from sysbench.core.trace.module_tree import TreeNode, from_share, kernel_tree
from sysbench.core.trace.questions import questions_of

MIN_TREE_SHARE = 0.005
"""Share of the step below which tree nodes are summed."""

READING_ORDER = (
    *("findings", "passes", "oom", "timing", "job", "rounds", "questions", "steps", "categories"),
    *("collectives", "copies", "annotations", "tree", "kernels", "roofline", "python", "api"),
    *("memory", "nsys", "numerics", "compile", "distributed", "telemetry", "environment"),
)
"""Sections in reading order, and tables that are read apart from their section. Unlisted sections
come before the last."""


@dataclass(frozen=True, slots=True)
class SectionSource:
    """Input of the tables.

    Attributes:
        record: Of a run or of an imported file, whose spec is empty.
        others: Runs of the same spec with another kind of step, for the questions.
        worth: Break-even of compiling against an eager run.
        tree: The traced step by layer.
    """

    record: Record
    others: Sequence[Record] = ()
    worth: BreakEven | None = None
    tree: TreeNode | None = None


def make_tables(section: str, source: SectionSource) -> Iterator[Table]:
    """Yield the section's tables in reading order; some may be empty."""
    record = source.record
    timing, kernels = record.timing, record.kernels
    side = kernels.host if kernels else None
    match section:
        case "timing":
            if timing:
                yield timing_table(timing)
                yield speed_table(timing, record.telemetry)
            yield passes_table(record)
        case "job" if record.job:
            yield from job_tables(record.job)
        case "rounds" if timing:
            yield rounds_table(timing)
        case "kernels" if kernels:
            yield kernel_table(kernels)
            yield category_table(kernels)
            yield from layer_tables(record)
        case "steps" if kernels and kernels.marked_steps:
            yield steps_table(kernels.marked_steps)
        case "collectives" if kernels:
            yield collectives_table(kernels.collectives)
        case "copies" if kernels:
            yield copies_table(kernels.copies)
        case "annotations" if kernels and side:
            yield annotations_table(kernels, side)
        case "python" if kernels and side:
            yield functions_table(kernels, side)
        case "api" if side:
            yield calls_table(side)
        case "tree" if source.tree:
            yield tree_table(source.tree)
        case "questions" if kernels:
            yield question_table(questions_of(record, source.others))
        case "roofline" if kernels:
            yield roofline_table(kernels)
            yield flops_table(record)
        case "memory" if record.memory:
            yield from memory_tables(record.memory)
        case "oom":
            yield from oom_tables(record)
        case "nsys" if record.nsys:
            # The kernels of a file are a section already; those of a run are of its trace pass.
            yield from record_tables(record.nsys) if record.spec else nsys_tables(record.nsys)
        case "telemetry" if record.telemetry:
            yield telemetry_table(record.telemetry)
        case "compile":
            yield from compile_tables(record, source.worth)
        case "distributed" if record.distributed:
            yield from distributed_tables(record.distributed)
        case "numerics" if record.numerics:
            yield from numerics_tables(record.numerics)
        case "findings":
            yield findings_table(record)
        case "environment":
            yield environment_table(record)


def tables_in(section: str, source: SectionSource, empty: Container[str] = ()) -> list[Table]:
    """Return the section's tables that have rows.

    Args:
        empty: Names of tables that are returned also without rows.
    """
    return [table for table in make_tables(section, source) if table.rows or table.name in empty]


def tables_of(
    record: Record, others: Sequence[Record] = (), worth: BreakEven | None = None
) -> list[Table]:
    """Return every table that the record has data for, in reading order.

    ``others`` and ``worth`` are as in `SectionSource`.
    """
    kernels = record.kernels
    tree = from_share(kernel_tree(kernels, record.memory), MIN_TREE_SHARE) if kernels else None
    source = SectionSource(record, others, worth, tree)
    tables = [
        (_place(name, table), table) for name in SECTIONS for table in tables_in(name, source)
    ]
    tables.sort(key=lambda placed: placed[0])
    return [spec_table(record), *(table for _, table in tables)]


def _place(section: str, table: Table) -> int:
    names = [name for name in (table.name, section) if name in READING_ORDER]
    return READING_ORDER.index(names[0] if names else READING_ORDER[-1])
