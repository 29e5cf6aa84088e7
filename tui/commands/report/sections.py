"""One section of a run in full: every row, as lines or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....core.analysis.costs.roofline import roof_points
from ....core.analysis.memory.oom import out_of_memory
from ....core.record.record import Record
from ....core.runs.directory import RunDirectory
from ....core.runs.related import worth_of
from ....core.tables.cells import literal
from ....core.tables.compile import compile_tables
from ....core.tables.context import environment_table, passes_table
from ....core.tables.distributed import distributed_tables
from ....core.tables.kernels import flops_table, roofline_table
from ....core.tables.memory import (
    devices_table,
    largest_table,
    memory_table,
    module_table,
    oom_tables,
    origins_table,
    pools_table,
    reconciliation_table,
    resident_table,
)
from ....core.tables.nsys import nsys_tables, record_tables
from ....core.tables.numerics import numerics_tables
from ....core.tables.timing import speed_table, telemetry_table
from .kernel_sections import (
    TreeOptions,
    answers_of,
    kernels_section,
    questions_section,
    tree_of,
    tree_section,
)
from .layout import Line, blank, prose, titled
from .report import finding_lines, full_table, memory_section, timing_section

_MEMORY_TABLES = (devices_table, reconciliation_table, resident_table, pools_table, module_table)
_BLOCKS = {"tree": "kernels", "questions": "kernels", "roofline": "kernels"}
"""The block of the record that a section is made of, where its name is another."""


def section_as_json(run: RunDirectory, record: Record, section: str, options: TreeOptions) -> Any:
    """The block of the record of that name; for ``log`` each pass's lines, for ``tree`` the
    outermost node, for ``questions`` the answers, for ``roofline`` the points, for ``oom`` the
    refusal that tells most."""
    match section:
        case "log":
            return {name: list(lines) for name, lines in _logs(run, record)}
        case "tree":
            return tree_of(run, record, options)
        case "questions":
            return answers_of(record)
        case "roofline":
            return roof_points(record.kernels, by_phase=True) if record.kernels else None
        case "oom":
            told = out_of_memory(record)
            return told and told[1]
        case _:
            return getattr(record, section)


def section_lines(
    run: RunDirectory,
    record: Record,
    section: str,
    width: int,
    page: int,
    options: TreeOptions,
) -> Iterator[Line]:
    """The section's tables ``width`` cells wide, its prose ``page`` wide."""
    match section:
        case "timing" if record.timing:
            yield from timing_section(record.timing, width)
            yield from full_table(speed_table(record.timing), width)
            yield from full_table(passes_table(record), width)
        case "kernels" if record.kernels:
            yield from kernels_section(record, width, page)
        case "tree" if tree := tree_of(run, record, options):
            yield from tree_section(record, tree, width, page)
        case "questions" if record.kernels:
            yield from questions_section(record, answers_of(record), page)
        case "roofline" if record.kernels:
            for table in (roofline_table(record.kernels), flops_table(record)):
                if table.rows:
                    yield from full_table(table, width)
        case "memory" if record.memory:
            yield from full_table(memory_table(record.memory), width)
            yield from memory_section(record.memory, page)
            for made in _MEMORY_TABLES:
                if (table := made(record.memory)).rows:
                    yield from full_table(table, width)
            yield from full_table(origins_table(record.memory), width)
            yield from full_table(largest_table(record.memory), width, drop=("died_ms", "born_ms"))
        case "oom":
            for table in (tables := oom_tables(record)):
                yield from full_table(table, width)
            if not tables:
                yield from prose(f"no pass of run {record.id} ran out of memory", page)
        case "nsys" if record.nsys:
            tables = record_tables(record.nsys) if record.spec else nsys_tables(record.nsys)
            for table in tables:
                yield from full_table(table, width)
        case "telemetry" if record.telemetry:
            yield from full_table(telemetry_table(record.telemetry), width)
        case "compile" if record.compile:
            for table in compile_tables(record, worth_of(record)):
                yield from full_table(table, width, drop=("sources", "file"))
        case "distributed" if record.distributed:
            for table in distributed_tables(record.distributed):
                if table.rows:
                    yield from full_table(table, width)
        case "numerics" if record.numerics:
            for table in numerics_tables(record.numerics):
                yield from full_table(table, width)
        case "log":
            yield from _log_lines(run, record)
        case "findings":
            yield from _findings(record, page)
        case "environment":
            yield from full_table(environment_table(record), width)
        case _:
            reason = record.missing.get(_BLOCKS.get(section, section), "it was not measured")
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
