"""`list`: all runs of this machine, newest first."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ...core.machine.null_gpu import MARK
from ...core.runs.directory import runs_folder
from ...core.tables.table import Table, select
from .arguments import add_wide, count, examples
from .report.output import page_width, print_json, print_lines, say

if TYPE_CHECKING:
    from ...core.runs.library import Entry

# Dropped from the right; the model's name is in the id as well.
_DROP = (
    *("created", "device", "model", "parameters", "compile", "optimizer", "attention"),
    *("step", "peak_bytes", "precision", "ctx", "B"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words that filter the runs, and the limit."""
    parser.description = (
        "List runs. Words filter: every one must occur in the run's id, model or settings."
    )
    parser.epilog = examples(
        ("sysbench-tui list", ""),
        ("sysbench-tui list large bf16", "only these"),
        ("sysbench-tui list --json | jq '.[0].median_ms'", ""),
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="show runs with all these words")
    parser.add_argument("-n", "--limit", type=count, metavar="N", help="show the newest N")
    add_wide(parser, "the list, and leave no column out")


def main(arguments: argparse.Namespace) -> int:
    """List the runs; always 0, with an empty list where there are none."""
    from ...core.runs.library import Library
    from .report.layout import table_lines

    library = Library()
    entries = library.entries(" ".join(arguments.words))[: arguments.limit]
    if arguments.json:
        print_json(entries)
    elif entries:
        print_lines(
            table_lines(
                table_of(entries), page_width(in_full=True, wide=arguments.wide), drop=_DROP
            )
        )
    else:
        matching = f" matching {' '.join(arguments.words)!r}" if arguments.words else ""
        say(f"no runs{matching} under {runs_folder()}; `sysbench-tui run` makes one")
    for run_id, reason in library.unreadable.items():
        say(f"not listed: {run_id}: {reason}", to_stderr=True)
    return 0


def table_of(entries: list[Entry]) -> Table:
    """One row for each run, with every setting that decides its numbers."""
    columns = (
        *("id", "status", "median_ms", "half_width_share", "rounds", "peak_bytes", "B", "ctx"),
        *("precision", "step", "attention", "optimizer", "compile", "model", "parameters"),
        *("device", "created"),
    )
    table = Table(name="runs", title="Runs", columns=columns, rows=tuple(map(_row, entries)))
    if all(entry.rounds < 2 for entry in entries):
        return select(table, [name for name in columns if name != "rounds"])
    return table


def _row(entry: Entry) -> tuple[str | int | float | None, ...]:
    status = "live" if entry.live else entry.status
    times = (entry.median_ms, entry.half_width)
    if entry.is_null:
        status, times = f"{status} {MARK}", (None, None)
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.created_ns / 1e9))
    return (
        *(entry.id, status, *times, entry.rounds),
        entry.peak_bytes,
        *(str(entry.batch), str(entry.context), entry.precision, entry.step, entry.attention),
        *(entry.optimizer, entry.compile, entry.model, entry.parameters),
        *(entry.device_name, created),
    )
