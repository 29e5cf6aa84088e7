"""One section of a run in full: every row, as lines or as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.memory.oom import out_of_memory
from sysbench.core.record.record import Record
from sysbench.core.runs.artifacts import logs_of
from sysbench.core.runs.related import compile_break_even
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import last_bytes, open_regular
from sysbench.core.tables.cells import literal
from sysbench.core.tables.sections import SECTIONS, Source
from sysbench.core.tables.table import Table
from sysbench.core.trace.roofline import roof_points
from sysbench.tui.commands.kernel_sections import (
    TreeOptions,
    answers_of,
    collectives_section,
    kernels_section,
    questions_section,
    steps_section,
    tree_of,
    tree_section,
)
from sysbench.tui.commands.layout import Line, blank, prose, titled
from sysbench.tui.commands.run_report import (
    finding_lines,
    full_table,
    memory_section,
    rounds_section,
    timing_section,
)

_SHOWN_WITHOUT_ROWS = (
    *("origins", "largest", "telemetry", "environment", "nvtx", "nsys-devices"),
    *("nsys-kernel-sum", "nsys-copy-sum"),
)
"""Tables whose heading is shown even without rows."""


@dataclass(frozen=True, kw_only=True)
class _View:
    """One section of a run, to be shown.

    Attributes:
        width: Cells that its tables may take.
        page: Cells that its prose may take.
    """

    run: RunDirectory
    record: Record
    section: str
    options: TreeOptions
    width: int
    page: int

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The section's tables by their names."""
        source = Source(record=self.record, worth=compile_break_even(self.record))
        return {
            table.name: table
            for table in SECTIONS[self.section].make(source)
            if table.rows or table.name in _SHOWN_WITHOUT_ROWS
        }

    def in_full(self, *names: str) -> Iterator[Line]:
        """The named tables in full, those that the section has."""
        for name in names:
            if name in self.tables:
                yield from full_table(self.tables[name], self.width)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """The text at the beginning of a section, before its tables in full.

    Attributes:
        lines: Makes the text.
        covers: Names of the tables that it shows.
    """

    lines: Callable[[_View], Iterator[Line]]
    covers: tuple[str, ...] = ()


def section_as_json(run: RunDirectory, record: Record, section: str, options: TreeOptions) -> Any:
    """The record's block of that name, or the content of a section that is no block.

    ``log`` has each pass's lines, ``rounds`` those of the timing block, ``steps`` the marked ones
    of a foreign file, ``annotations``, ``python`` and ``api`` its tables of the host, ``tree`` the
    outermost node, ``questions`` the answers, ``roofline`` the points, ``oom`` the out-of-memory
    block with the most detail.
    """
    match section:
        case "log":
            return {name: _end_of(run, path) for name, path in _logs(run, record)}
        case "rounds":
            return record.timing and record.timing.rounds
        case "tree":
            return tree_of(run, record, options)
        case "steps":
            return record.kernels and record.kernels.marked_steps
        case "collectives":
            return record.kernels and record.kernels.collectives
        case "annotations" | "python" | "api":
            return SECTIONS[section].tables(Source(record=record))
        case "questions":
            return answers_of(record)
        case "roofline":
            return roof_points(record.kernels, by_phase=True) if record.kernels else None
        case "oom":
            pass_and_oom = out_of_memory(record)
            return pass_and_oom and pass_and_oom[1]
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
    block = SECTIONS[section].block
    if block and getattr(record, block) is None:
        reason = record.missing.get(block, "it was not measured")
        yield from prose(f"no {section} in run {record.id}: {literal(reason)}", page)
        return
    view = _View(run=run, record=record, section=section, options=options, width=width, page=page)
    text = TEXTS.get(section, _Text(lines=lambda view: iter(())))
    yield from text.lines(view)
    yield from view.in_full(*(name for name in view.tables if name not in text.covers))


def _timing(view: _View) -> Iterator[Line]:
    assert view.record.timing is not None
    yield from timing_section(view.record.timing, view.width)


def _rounds(view: _View) -> Iterator[Line]:
    timing = view.record.timing
    assert timing is not None
    if not timing.rounds:
        yield from prose(f"run {view.record.id} was timed by one process: no rounds", view.page)
        return
    yield from rounds_section(timing, view.width)


def _kernels(view: _View) -> Iterator[Line]:
    yield from kernels_section(view.record, view.width, view.page)


def _steps(view: _View) -> Iterator[Line]:
    assert view.record.kernels is not None
    if marked := view.record.kernels.marked_steps:
        yield from steps_section(marked, view.width, len(marked.rows))
    else:
        yield from prose("no range in it marks a step", view.page)


def _of_host(view: _View) -> Iterator[Line]:
    if not view.tables:
        yield from prose(f"no {view.section} here: only files of others have them", view.page)


def _collectives(view: _View) -> Iterator[Line]:
    assert view.record.kernels is not None
    if rows := view.record.kernels.collectives:
        yield from collectives_section(rows, view.width, len(rows))
    else:
        yield from prose("no collective of a GPU in it", view.page)


def _tree(view: _View) -> Iterator[Line]:
    tree = tree_of(view.run, view.record, view.options)
    assert tree is not None
    yield from tree_section(view.record, tree, view.width, view.page)


def _questions(view: _View) -> Iterator[Line]:
    yield from questions_section(view.record, answers_of(view.record), view.page)


def _memory(view: _View) -> Iterator[Line]:
    assert view.record.memory is not None
    yield from view.in_full("memory")
    yield from memory_section(view.record.memory, view.page)
    yield from view.in_full("devices")


def _oom(view: _View) -> Iterator[Line]:
    if not view.tables:
        yield from prose(f"no pass of run {view.record.id} ran out of memory", view.page)


def _findings(view: _View) -> Iterator[Line]:
    if not view.record.findings:
        yield from prose("no finding: no rule fired on this run", view.page)
    for finding in view.record.findings:
        yield blank()
        yield from finding_lines(finding, view.page)


def _log(view: _View) -> Iterator[Line]:
    for name, path in _logs(view.run, view.record):
        literal_lines = ([(literal(line), "")] for line in _lines_of(view.run, path))
        yield from titled(f"{name}: {path}", literal_lines)


TEXTS = {
    "timing": _Text(lines=_timing, covers=("timing",)),
    "rounds": _Text(lines=_rounds, covers=("rounds",)),
    "kernels": _Text(lines=_kernels, covers=("kernels", "categories")),
    "steps": _Text(lines=_steps, covers=("steps",)),
    "collectives": _Text(lines=_collectives, covers=("collectives",)),
    "annotations": _Text(lines=_of_host),
    "python": _Text(lines=_of_host),
    "api": _Text(lines=_of_host),
    "tree": _Text(lines=_tree, covers=("tree",)),
    "questions": _Text(lines=_questions, covers=("questions",)),
    "memory": _Text(lines=_memory, covers=("memory", "ledger", "card", "devices")),
    "oom": _Text(lines=_oom),
    "log": _Text(lines=_log),
    "findings": _Text(lines=_findings, covers=("findings",)),
}
"""Sections with text besides their tables, or with tables in another form."""


def _logs(run: RunDirectory, record: Record) -> Iterator[tuple[str, Path]]:
    """The logs that there are, by the name of their pass."""
    return ((name, path) for name, path in logs_of(run, record) if path.is_file())


def _lines_of(run: RunDirectory, path: Path) -> Iterator[str]:
    """The log of a pass, line by line; undecodable bytes are replaced, and a line without an end
    comes in pieces."""
    try:
        with io.TextIOWrapper(open_regular(path, run.path), "utf-8", "replace") as file:
            while line := file.readline(LONGEST_LINE):
                yield line.rstrip("\n")
    except DamagedFileError as error:
        yield f"not read: {error}"


def _end_of(run: RunDirectory, path: Path) -> list[str]:
    """The log's lines; of a long one the last, and how many bytes came before them."""
    left_out = path.stat().st_size - MOST_LOG_BYTES
    if left_out <= 0:
        return list(_lines_of(run, path))
    lines = last_bytes(path, MOST_LOG_BYTES, inside=run.path).decode("utf-8", "replace")
    return [f"… the first {format_bytes(left_out)} are in {path}", *lines.splitlines()]


LONGEST_LINE = 2**16
MOST_LOG_BYTES = 2**24
"""Most of a log that one JSON document holds; as text it is printed whole, piece by piece."""
