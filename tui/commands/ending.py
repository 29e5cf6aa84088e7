"""The output at the end of a run, and its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from sysbench.core.export.exports import EXPORTS
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.stored_records import load_record
from sysbench.tui.commands.layout import Line, titled
from sysbench.tui.commands.output import page_width, print_json, print_lines
from sysbench.tui.commands.run_report import report_lines

_CODES = {"finished": 0, "running": 0, "cancelled": 130}


def print_ending(run: RunDirectory, *, json: bool) -> int:
    """Print the record, or the report and the paths of the artifacts; return the exit code."""
    record = load_record(run)
    if json:
        print_json(record)
    else:
        print_lines(full_report(run, record, page_width()))
    return _CODES.get(record.status, 1)


def full_report(run: RunDirectory, record: Record, width: int) -> Iterator[Line]:
    """The report, then the run's artifacts and the commands that export them."""
    yield from report_lines(record, width)
    # Never cut: these lines are for copying.
    yield from titled(
        "Artifacts",
        ([(f"  {label:<12}", "dim"), (text, "")] for label, text in _exports(run, record)),
    )


def _exports(run: RunDirectory, record: Record) -> Iterator[tuple[str, str]]:
    command = f"sysbench-tui export {shlex.quote(run.id)}"
    yield "directory", str(run.path)
    for kind, export in EXPORTS.items():
        if export.offer and export.offer.applies(run, record):
            yield export.offer.label, f"{command} {kind:<12} # {export.offer.note}"
