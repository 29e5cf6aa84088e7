"""One section of a run in full: every row, as lines or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.export.context_tables import environment_table, passes_table
from ...core.export.figures import literal
from ...core.export.kernel_tables import kernel_table
from ...core.export.memory_tables import largest_table, memory_table, module_table
from ...core.export.table import Table
from ...core.export.timing_tables import compile_table, speed_table, telemetry_table
from ...core.record import Record
from ...core.rundir import RunDirectory
from .layout import Line, blank, prose, table_lines, title
from .report import category_section, finding_lines, kernel_lines, memory_section, timing_section


def section_as_json(run: RunDirectory, record: Record, section: str) -> Any:
    """The block of the record of that name; for ``log`` each pass's lines."""
    if section == "log":
        return {name: list(lines) for name, lines in _logs(run, record)}
    return getattr(record, section)


def section_lines(
    run: RunDirectory, record: Record, section: str, width: int, page: int
) -> Iterator[Line]:
    """The section's tables ``width`` cells wide, its prose ``page`` wide."""
    match section:
        case "timing" if record.timing:
            yield from timing_section(record.timing, width)
            yield from _full(speed_table(record.timing), width)
            yield from _full(passes_table(record), width)
        case "kernels" if record.kernels:
            table = kernel_table(record.kernels)
            yield title(table.title)
            yield from kernel_lines(table, width)
            yield from category_section(record, page)
        case "memory" if record.memory:
            yield from _full(memory_table(record.memory), width)
            yield from memory_section(record.memory, page)
            yield from _full(module_table(record.memory), width)
            yield from _full(largest_table(record.memory), width)
        case "telemetry" if record.telemetry:
            yield from _full(telemetry_table(record.telemetry), width)
        case "compile" if record.compile:
            yield from _full(compile_table(record.compile), width)
        case "log":
            yield from _log_lines(run, record)
        case "findings":
            yield from _findings(record, page)
        case "environment":
            yield from _full(environment_table(record), width)
        case _:
            reason = record.missing.get(section, "it was not measured")
            yield from prose(f"no {section} in run {record.id}: {literal(reason)}", page)


def _findings(record: Record, width: int) -> Iterator[Line]:
    if not record.findings:
        yield from prose("no finding: no rule fired on this run", width)
    for finding in record.findings:
        yield from finding_lines(finding, width)
        yield blank()


def _log_lines(run: RunDirectory, record: Record) -> Iterator[Line]:
    for name, lines in _logs(run, record):
        yield title(f"{name}: {run.log_path(name)}")
        yield from ([(literal(line), "")] for line in lines)


def _logs(run: RunDirectory, record: Record) -> Iterator[tuple[str, Iterator[str]]]:
    """What the worker of each pass printed, line by line; undecodable bytes are replaced."""
    for one in record.passes:
        path = run.log_path(one.name)
        if path.is_file():
            yield one.name, _lines_of(path)


def _lines_of(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            yield line.rstrip("\n")


def _full(table: Table, width: int) -> Iterator[Line]:
    yield title(literal(table.title))
    yield from table_lines(table, width)
    yield blank()
