"""All tables of a record: the one source for the command line, CSV, Markdown and pandas."""

from __future__ import annotations

from ..errors import NotFoundError
from ..record import Record
from .context_tables import environment_table, findings_table, passes_table, spec_table
from .kernel_tables import category_table, kernel_table
from .memory_tables import card_table, largest_table, ledger_table, memory_table, module_table
from .table import Table, to_frame
from .timing_tables import compile_table, speed_table, telemetry_table, timing_table

__all__ = ["Table", "table_named", "tables_of", "to_frame"]


def tables_of(record: Record) -> list[Table]:
    """Every table that the record has data for, in reading order."""
    tables = [spec_table(record), findings_table(record), passes_table(record)]
    if record.timing:
        tables += [timing_table(record.timing), speed_table(record.timing)]
    if record.kernels:
        tables += [category_table(record.kernels), kernel_table(record.kernels)]
    if record.memory:
        memory = record.memory
        tables += [memory_table(memory), ledger_table(memory), card_table(memory)]
        tables += [module_table(memory), largest_table(memory)]
    if record.compile:
        tables.append(compile_table(record.compile))
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
