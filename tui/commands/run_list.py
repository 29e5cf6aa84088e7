"""List, delete and restore runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from sysbench.core.errors import SpecError
from sysbench.core.runs.library import Entry, Library
from sysbench.core.runs.run_directory import find_run, runs_folder
from sysbench.core.tables.table import Cell, Column, Table, columns_for, tabulate
from sysbench.tui.commands.answers import print_chosen
from sysbench.tui.commands.output import page_width, print_answer, print_json, print_lines, say
from sysbench.tui.commands.text_lines import table_lines
from sysbench.tui.run_text import state_text
from sysbench.tui.text import minute_of

# Columns to drop, the first one first; the id contains the model's name too.
_DROP = (
    *("note", "created", "command", "device", "model", "parameters", "compile", "optimizer"),
    *("attention", "step", "peak_bytes", "precision", "ctx", "B"),
)


_SETTINGS = {"B": "batch", "ctx": "context"} | {
    name: name for name in ("precision", "step", "attention", "optimizer", "compile")
}
"""Columns of settings, which a watched command does not have."""


def print_runs(arguments: argparse.Namespace) -> int:
    if arguments.trash:
        return _list_trash(arguments)
    library = Library()
    matching = library.entries(" ".join(arguments.words))
    entries = matching[: arguments.limit]
    if print_chosen(arguments, lambda: [table_of(entries)], None):
        pass
    elif arguments.json:
        is_cut = len(entries) < len(matching)
        print_json({"total": len(matching), "truncated": is_cut, "rows": entries})
    elif entries:
        print_lines(
            table_lines(
                table_of(entries), page_width(in_full=True, wide=arguments.wide), drop=_DROP
            )
        )
    else:
        asked = f" matching {' '.join(arguments.words)!r}" if arguments.words else ""
        say(f"no runs{asked} under {runs_folder()}; `sysbench-tui run` makes one")
    for run_id, reason in library.unreadable.items():
        say(f"not listed: {run_id}: {reason}", to_stderr=True)
    return 0


def _list_trash(arguments: argparse.Namespace) -> int:
    from sysbench.core.runs.trash import list_trash, trash_folder  # lazy: takes 0.1 s

    deleted = [
        trashed
        for trashed in list_trash()
        if all(word.lower() in trashed.id.lower() for word in arguments.words)
    ][: arguments.limit]
    if arguments.json:
        print_json(deleted)
    elif deleted:
        rows = tuple((trashed.id, minute_of(trashed.deleted_ns)) for trashed in deleted)
        table = Table(name="trash", title="Deleted runs", columns=("id", "deleted"), rows=rows)
        print_lines(table_lines(table, page_width(in_full=True, wide=arguments.wide)))
    else:
        say(f"no deleted runs under {trash_folder()}")
    return 0


def _setting(name: str) -> Callable[[Entry], Cell]:
    return lambda entry: str(getattr(entry, name) or "") or None


def table_of(entries: Sequence[Entry]) -> Table:
    has_rounds = any(entry.rounds > 1 for entry in entries)
    columns = columns_for(
        Entry,
        "id",
        Column("name", is_optional=True),
        Column("status", state_text),
        "median_ms",
        Column("half_width_share", lambda entry: entry.half_width),
        Column("rounds", lambda entry: entry.rounds if has_rounds else None, is_optional=True),
        "peak_bytes",
        *(Column(heading, _setting(name), is_optional=True) for heading, name in _SETTINGS.items()),
        "model",
        Column("parameters", lambda entry: entry.parameters or None, is_optional=True),
        Column("device", lambda entry: entry.device_name),
        Column("created", lambda entry: minute_of(entry.created_ns)),
        Column("note", is_optional=True),
        Column("command", about="command that was watched", is_optional=True),
    )
    return tabulate(entries, *columns, name="runs", title="Runs")


def remove(arguments: argparse.Namespace) -> int:
    if arguments.empty == bool(arguments.runs) or (arguments.empty and arguments.restore):
        raise SpecError("RUN", "", "name the runs, or give --empty alone")
    from sysbench.core.runs import trash  # lazy: as above

    if arguments.empty:
        done, word = [run.id for run in trash.empty_trash()], "permanently deleted"
    elif arguments.restore:
        done = [trash.restore(trash.find_trashed(text)).id for text in arguments.runs]
        word = "restored"
    else:
        done, word = _delete(arguments), "deleted; `sysbench-tui rm --restore` brings it back"
    texts = [f"{run_id} {word}" for run_id in done] or ["the trash is empty"]
    print_answer([{"id": run_id} for run_id in done], *texts, json=arguments.json)
    return 0


def _delete(arguments: argparse.Namespace) -> list[str]:
    from sysbench.core.runs.trash import KeptRunError, trash_run  # lazy: as above
    from sysbench.core.studies.study_directory import uses_of  # lazy: as above

    runs = {run.id: run for run in map(find_run, arguments.runs)}
    for run_id in runs:
        uses = uses_of(run_id)
        if uses and not arguments.force:
            raise KeptRunError(
                f"run {run_id} belongs to {'; '.join(uses)}: --force deletes it anyway"
            )
        for use in uses:
            say(f"{run_id} belonged to {use}", to_stderr=True)
    return [trash_run(run).id for run in runs.values()]
