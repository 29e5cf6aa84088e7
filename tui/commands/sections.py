"""One section of a run in full: every row, as lines or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.export.context_tables import environment_table, passes_table
from ...core.export.figures import literal
from ...core.export.kernel_tables import kernel_table
from ...core.export.memory_tables import largest_table, memory_table, module_table
from ...core.export.timing_tables import compile_table, speed_table, telemetry_table
from ...core.record import Record
from ...core.rundir import RunDirectory
from .layout import Line, blank, prose, titled
from .report import (
    category_section,
    finding_lines,
    full_table,
    kernel_lines,
    memory_section,
    timing_section,
)


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
            yield from full_table(speed_table(record.timing), width)
            yield from full_table(passes_table(record), width)
        case "kernels" if record.kernels:
            table = kernel_table(record.kernels)
            yield from titled(table.title, kernel_lines(table, width))
            yield from category_section(record.kernels, page)
        case "memory" if record.memory:
            yield from full_table(memory_table(record.memory), width)
            yield from memory_section(record.memory, page)
            yield from full_table(module_table(record.memory), width)
            yield from full_table(largest_table(record.memory), width, drop=("died_ms", "born_ms"))
        case "telemetry" if record.telemetry:
            yield from full_table(telemetry_table(record.telemetry), width)
        case "compile" if record.compile:
            yield from full_table(compile_table(record.compile), width)
        case "log":
            yield from _log_lines(run, record)
        case "findings":
            yield from _findings(record, page)
        case "environment":
            yield from full_table(environment_table(record), width)
        case _:
            reason = record.missing.get(section, "it was not measured")
            yield from prose(f"no {section} in run {record.id}: {literal(reason)}", page)


def _findings(record: Record, width: int) -> Iterator[Line]:
    if not record.findings:
        yield from prose("no finding: no rule fired on this run", width)
    for finding in record.findings:
        yield blank()
        yield from finding_lines(finding, width)


def _log_lines(run: RunDirectory, record: Record) -> Iterator[Line]:
    for name, lines in _logs(run, record):
        literal_lines = ([(literal(line), "")] for line in lines)
        yield from titled(f"{name}: {run.log_path(name)}", literal_lines)


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
