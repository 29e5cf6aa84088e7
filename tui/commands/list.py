"""`list`: list all runs of this machine, newest first."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from sysbench.core.runs.run_directory import runs_folder
from sysbench.core.tables.table import Table, select
from sysbench.tui.commands.arguments import add_wide, examples, parse_count
from sysbench.tui.commands.output import page_width, print_json, print_lines, say

if TYPE_CHECKING:
    from sysbench.core.runs.library import Entry

# Columns to drop, the first one first; the id contains the model's name too.
_DROP = (
    *("note", "created", "device", "model", "parameters", "compile", "optimizer", "attention"),
    *("step", "peak_bytes", "precision", "ctx", "B"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List runs. With words, only runs whose id, model, settings, name or note contain all of\n"
        "them."
    )
    parser.epilog = examples(
        ("sysbench-tui list", ""),
        ("sysbench-tui list large bf16", "only these"),
        ("sysbench-tui list --json | jq '.[0].median_ms'", ""),
        ("sysbench-tui list --trash", "runs that `rm` or the Library deleted"),
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="show runs with all these words")
    parser.add_argument("-n", "--limit", type=parse_count, metavar="N", help="show the newest N")
    add_wide(parser, "the list, and show all columns")
    parser.add_argument("--trash", action="store_true", help="list the deleted runs instead")


def main(arguments: argparse.Namespace) -> int:
    from sysbench.core.runs.library import Library  # lazy: --help stays fast
    from sysbench.tui.commands.layout import table_lines  # lazy: rich

    if arguments.trash:
        return _list_trash(arguments)
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


def _list_trash(arguments: argparse.Namespace) -> int:
    from sysbench.core.runs.trash import list_trash, trash_folder  # lazy: --help stays fast
    from sysbench.tui.commands.layout import table_lines  # lazy: rich

    deleted = [
        trashed
        for trashed in list_trash()
        if all(word.lower() in trashed.id.lower() for word in arguments.words)
    ][: arguments.limit]
    if arguments.json:
        print_json(deleted)
    elif deleted:
        rows = tuple((trashed.id, _minute(trashed.deleted_ns)) for trashed in deleted)
        table = Table(name="trash", title="Deleted runs", columns=("id", "deleted"), rows=rows)
        print_lines(table_lines(table, page_width(in_full=True, wide=arguments.wide)))
    else:
        say(f"no deleted runs under {trash_folder()}")
    return 0


def _minute(t_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(t_ns / 1e9))


def table_of(entries: list[Entry]) -> Table:
    """Return a row per run, with all settings that affect its numbers."""
    columns = (
        *("id", "name", "status", "median_ms", "half_width_share", "rounds"),
        *("peak_bytes", "B", "ctx"),
        *("precision", "step", "attention", "optimizer", "compile", "model", "parameters"),
        *("device", "created", "note"),
    )
    table = Table(name="runs", title="Runs", columns=columns, rows=tuple(map(_row, entries)))
    unused = {
        "rounds": all(entry.rounds < 2 for entry in entries),
        "name": not any(entry.name for entry in entries),
        "note": not any(entry.note for entry in entries),
    }
    return select(table, [name for name in columns if not unused.get(name)])


def _row(entry: Entry) -> tuple[str | int | float | None, ...]:
    from sysbench.tui.run_text import state_text  # lazy: rich

    created = _minute(entry.created_ns)
    return (
        *(entry.id, entry.name, state_text(entry), entry.median_ms, entry.half_width),
        entry.rounds,
        entry.peak_bytes,
        *(str(entry.batch), str(entry.context), entry.precision, entry.step, entry.attention),
        *(entry.optimizer, entry.compile, entry.model, entry.parameters),
        *(entry.device_name, created, entry.note),
    )
