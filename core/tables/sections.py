"""Registry of report sections, each with its tables.

Table modules are imported when a section is made, because the command line needs only names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sysbench.core.errors import NotFoundError
from sysbench.core.record.record import Record
from sysbench.core.tables.table import Table

if TYPE_CHECKING:
    from sysbench.core.compare.comparison import BreakEven
    from sysbench.core.trace.module_tree import TreeNode


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a report.

    Attributes:
        make: Yields the section's tables in reading order; some may be empty.
        block: Record field of the section; empty if every run has it.
        of_files: True if imported files may have it.
    """

    make: Callable[[SectionSource], Iterator[Table]]
    block: str = ""
    of_files: bool = False

    def tables(self, source: SectionSource) -> list[Table]:
        return [table for table in self.make(source) if table.rows]


def _timing(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import context  # lazy: the CLI reads names only
    from sysbench.core.tables import timing_tables as timing  # lazy: the CLI reads names only

    if source.record.timing:
        yield timing.timing_table(source.record.timing)
        yield timing.speed_table(source.record.timing, source.record.telemetry)
    yield context.passes_table(source.record)


def _rounds(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import timing_tables as timing  # lazy: the CLI reads names only

    if source.record.timing:
        yield timing.rounds_table(source.record.timing)


def _kernels(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import kernel_tables as kernels  # lazy: the CLI reads names only

    if source.record.kernels:
        yield kernels.kernel_table(source.record.kernels)
        yield kernels.category_table(source.record.kernels)


def _steps(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import host_tables as steps  # lazy: the CLI reads names only

    if source.record.kernels and source.record.kernels.marked_steps:
        yield steps.steps_table(source.record.kernels.marked_steps)


def _collectives(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import (
        collectives_tables as collectives,
    )  # lazy: the CLI reads names only

    if source.record.kernels:
        yield collectives.collectives_table(source.record.kernels.collectives)


def _annotations(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import host_tables as host  # lazy: the CLI reads names only

    if source.record.kernels and (side := source.record.kernels.host):
        yield host.annotations_table(source.record.kernels, side)


def _python(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import host_tables as host  # lazy: the CLI reads names only

    if source.record.kernels and (side := source.record.kernels.host):
        yield host.functions_table(source.record.kernels, side)


def _api(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import host_tables as host  # lazy: the CLI reads names only

    if source.record.kernels and (side := source.record.kernels.host):
        yield host.calls_table(side)


def _tree(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import tree_rows as tree  # lazy: the CLI reads names only

    if source.tree:
        yield tree.tree_table(source.tree)


def _questions(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import kernel_tables as kernels  # lazy: the CLI reads names only
    from sysbench.core.trace.questions import questions_of  # lazy: the CLI reads names only

    if source.record.kernels:
        yield kernels.question_table(questions_of(source.record, source.others))


def _roofline(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import kernel_tables as kernels  # lazy: the CLI reads names only

    if source.record.kernels:
        yield kernels.roofline_table(source.record.kernels)
        yield kernels.flops_table(source.record)


def _memory(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import memory_tables as allocations  # lazy: the CLI reads names only
    from sysbench.core.tables import memory_tables as memory  # lazy: the CLI reads names only

    if block := source.record.memory:
        yield memory.memory_table(block)
        yield memory.ledger_table(block)
        yield memory.card_table(block)
        yield memory.reconciliation_table(block)
        yield memory.resident_table(block)
        yield memory.pools_table(block)
        yield memory.module_table(block)
        yield allocations.origins_table(block)
        yield allocations.largest_table(block)
        yield memory.devices_table(block)


def _oom(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import memory_tables as memory  # lazy: the CLI reads names only

    yield from memory.oom_tables(source.record)


def _nsys(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import nsys_tables as nsys  # lazy: the CLI reads names only

    if block := source.record.nsys:
        # The kernels of a file are a section already; those of a run are of its trace pass.
        yield from nsys.record_tables(block) if source.record.spec else nsys.nsys_tables(block)


def _telemetry(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import timing_tables as timing  # lazy: the CLI reads names only

    if source.record.telemetry:
        yield timing.telemetry_table(source.record.telemetry)


def _compile(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import compile_tables as compile  # lazy: the CLI reads names only

    yield from compile.compile_tables(source.record, source.worth)


def _distributed(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import (
        distributed_tables as distributed,
    )  # lazy: the CLI reads names only

    if source.record.distributed:
        yield from distributed.distributed_tables(source.record.distributed)


def _numerics(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import numerics_tables as numerics  # lazy: the CLI reads names only

    if source.record.numerics:
        yield from numerics.numerics_tables(source.record.numerics)


def _findings(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import context  # lazy: the CLI reads names only

    yield context.findings_table(source.record)


def _environment(source: SectionSource) -> Iterator[Table]:
    from sysbench.core.tables import context  # lazy: the CLI reads names only

    yield context.environment_table(source.record)


SECTIONS = {
    "timing": Section(make=_timing, block="timing"),
    "rounds": Section(make=_rounds, block="timing"),
    "kernels": Section(make=_kernels, block="kernels", of_files=True),
    "steps": Section(make=_steps, block="kernels", of_files=True),
    "collectives": Section(make=_collectives, block="kernels", of_files=True),
    "annotations": Section(make=_annotations, block="kernels", of_files=True),
    "python": Section(make=_python, block="kernels", of_files=True),
    "api": Section(make=_api, block="kernels", of_files=True),
    "tree": Section(make=_tree, block="kernels", of_files=True),
    "questions": Section(make=_questions, block="kernels"),
    "roofline": Section(make=_roofline, block="kernels", of_files=True),
    "memory": Section(make=_memory, block="memory", of_files=True),
    "oom": Section(make=_oom),
    "nsys": Section(make=_nsys, block="nsys", of_files=True),
    "telemetry": Section(make=_telemetry, block="telemetry"),
    "compile": Section(make=_compile, block="compile"),
    "distributed": Section(make=_distributed, block="distributed"),
    "numerics": Section(make=_numerics, block="numerics"),
    "log": Section(make=lambda source: iter(())),  # text alone
    "findings": Section(make=_findings),
    "environment": Section(make=_environment),
}
"""In the order of ``--section``."""

INSPECTED = tuple(name for name, section in SECTIONS.items() if section.of_files)
"""Sections that an imported file may have."""

MIN_TREE_SHARE = 0.005
"""Share of the step below which tree nodes are summed."""

READING_ORDER = (
    *("findings", "passes", "oom", "timing", "rounds", "questions", "steps", "categories"),
    *("collectives", "annotations", "tree", "kernels", "roofline", "python", "api", "memory"),
    *("nsys", "numerics", "compile", "distributed", "telemetry", "environment"),
)
"""Sections in reading order, and tables that are read apart from their section. Unlisted sections
come before the last."""


def tables_of(
    record: Record, others: Sequence[Record] = (), worth: BreakEven | None = None
) -> list[Table]:
    """Return every table that the record has data for, in reading order.

    Args:
        others: Runs of the same spec with another kind of step, for the questions.
        worth: Break-even of compiling against an eager run.
    """
    from sysbench.core.tables.context import spec_table  # lazy: the CLI reads names only

    source = SectionSource(record=record, others=others, worth=worth, tree=_short_tree(record))
    tables = [
        (_place(name, table), table)
        for name, section in SECTIONS.items()
        for table in section.tables(source)
    ]
    tables.sort(key=lambda placed: placed[0])
    return [spec_table(record), *(table for _, table in tables)]


def _short_tree(record: Record) -> TreeNode | None:
    if record.kernels is None:
        return None
    from sysbench.core.trace.module_tree import (
        from_share,
        kernel_tree,
    )  # lazy: the CLI reads names only

    return from_share(kernel_tree(record.kernels, record.memory), MIN_TREE_SHARE)


def _place(section: str, table: Table) -> int:
    names = [name for name in (table.name, section) if name in READING_ORDER]
    return READING_ORDER.index(names[0] if names else READING_ORDER[-1])


def table_named(record: Record, name: str) -> Table:
    """Return one table by name: ``timing``, ``kernels``, ``ledger``, …

    Raises:
        NotFoundError: The record has no such table; the message lists the tables it has.
    """
    tables = {table.name: table for table in tables_of(record)}
    if name not in tables:
        raise NotFoundError(f"run {record.id} has no table {name!r}; it has {', '.join(tables)}")
    return tables[name]
