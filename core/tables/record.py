"""All tables of a record: the one source for the command line, CSV, Markdown and pandas."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.compare import BreakEven
from ..analysis.kernels.questions import questions_of
from ..analysis.kernels.tree import from_share, kernel_tree
from ..errors import NotFoundError
from ..record.record import Record
from .compile import compile_tables
from .context import environment_table, findings_table, passes_table, spec_table
from .distributed import distributed_tables
from .kernels import category_table, flops_table, kernel_table, question_table, roofline_table
from .memory import (
    card_table,
    devices_table,
    largest_table,
    ledger_table,
    memory_table,
    module_table,
    oom_tables,
    origins_table,
    pools_table,
    reconciliation_table,
    resident_table,
)
from .nsys import record_tables
from .numerics import numerics_tables
from .table import Table, to_frame
from .timing import speed_table, telemetry_table, timing_table
from .tree import tree_table

__all__ = ["Table", "table_named", "tables_of", "to_frame"]


TREE_LEAST = 0.005
"""Share of the step under which nodes of the exported tree are summed up: the kernel table has
every row."""


def tables_of(
    record: Record, others: Sequence[Record] = (), worth: BreakEven | None = None
) -> list[Table]:
    """Every table that the record has data for, in reading order.

    ``others`` are runs of the same spec with another kind of step, for the questions;
    ``worth`` is what compiling saves against an eager run.
    """
    tables = [spec_table(record), findings_table(record), passes_table(record)]
    tables += oom_tables(record)
    if record.timing:
        tables += [timing_table(record.timing), speed_table(record.timing)]
    if record.kernels:
        tree = from_share(kernel_tree(record.kernels, record.memory), TREE_LEAST)
        tables += [question_table(questions_of(record, others)), category_table(record.kernels)]
        tables += [tree_table(tree), kernel_table(record.kernels)]
        tables += [roofline_table(record.kernels), flops_table(record)]
    if record.memory:
        memory = record.memory
        tables += [memory_table(memory), ledger_table(memory), card_table(memory)]
        tables += [reconciliation_table(memory), resident_table(memory), pools_table(memory)]
        tables += [module_table(memory), origins_table(memory), largest_table(memory)]
        tables.append(devices_table(memory))
    if record.nsys:
        tables += record_tables(record.nsys)
    if record.numerics:
        tables += numerics_tables(record.numerics)
    tables += compile_tables(record, worth)
    if record.distributed:
        tables += distributed_tables(record.distributed)
    if record.telemetry:
        tables.append(telemetry_table(record.telemetry))
    tables.append(environment_table(record))
    return [table for table in tables if table.rows]


def table_named(record: Record, name: str) -> Table:
    """One table by its name: ``timing``, ``kernels``, ``ledger``, …

    Raises:
        NotFoundError: The record has no such table; names those it has.
    """
    tables = {table.name: table for table in tables_of(record)}
    if name not in tables:
        raise NotFoundError(f"run {record.id} has no table {name!r}; it has {', '.join(tables)}")
    return tables[name]
