"""All runs of this machine, indexed in SQLite. The run directories are the truth.

``library.db`` may be deleted or damaged at any time: it is rebuilt from the runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..analysis.rounds import rounds_counted
from ..errors import DamagedFileError
from ..record.environment import device_name
from ..record.record import Record
from ..spec.fields import FIELDS
from ..spec.spec import subject
from ..storage import home
from .builder import load_record
from .directory import RunDirectory, find_run, list_runs

BUSY_SECONDS = 10.0
ENTRY_FORMAT = 3
"""Counts the changes of `Entry`: rows of an older one are made anew."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list: the keys that decide its numbers, and its main numbers.

    ``ci_low_ms`` and ``ci_high_ms`` are the ends of the median's 95 % interval, ``half_width``
    half of it as a share; null values were not measured. ``rounds`` is the number of processes
    that these are of: with one the interval is inside it, with none no timing counts. ``live`` is
    true while a supervisor works on the run.
    """

    id: str
    created_ns: int
    status: str
    live: bool = False
    identity: str
    model: str
    parameters: int
    batch: int
    context: int
    precision: str
    attention: str
    step: str
    optimizer: str
    compile: str
    device: str
    device_name: str
    median_ms: float | None
    ci_low_ms: float | None
    ci_high_ms: float | None
    half_width: float | None
    peak_bytes: int | None
    passes: list[str]
    rounds: int = 0


SPEC_COLUMNS = tuple(field.name for field in FIELDS if field.name in Entry.__struct_fields__)
"""Keys of a spec that the list has."""


class Library:
    """The index under one home (default: the user's)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home()
        self.path = self.root / "library.db"

    def entries(self, text: str = "") -> list[Entry]:
        """Runs newest first; each word of ``text`` must occur somewhere in the row."""
        self.refresh()
        words = text.lower().split()
        clause = " AND ".join(["search LIKE ? ESCAPE '\\'"] * len(words)) or "1"
        likes = [f"%{_escaped(word)}%" for word in words]
        query = f"SELECT entry FROM runs WHERE {clause}"
        with self._connect() as database:
            rows = database.execute(query, likes).fetchall()
        entries = [msgspec.json.decode(row[0], type=Entry) for row in rows]
        entries.sort(key=lambda entry: (entry.created_ns, entry.id), reverse=True)
        return [
            msgspec.structs.replace(entry, live=True) if self._is_live(entry) else entry
            for entry in entries
        ]

    def live(self) -> list[Entry]:
        """Runs that a supervisor is working on, newest first."""
        return [entry for entry in self.entries() if entry.live]

    def open(self, text: str) -> RunDirectory:
        """The run with that id, part of one, or ``last``; raises NotFoundError."""
        return find_run(text, self.root)

    def refresh(self) -> None:
        """Bring the index up to date with the directories; rebuild it if it is damaged."""
        try:
            self._refresh()
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
            self._refresh()

    def _refresh(self) -> None:
        runs = {run.id: run for run in list_runs(self.root)}
        if not runs and not self.path.exists():
            return
        with self._connect() as database:
            indexed = dict(database.execute("SELECT id, version FROM runs").fetchall())
            for gone in indexed.keys() - runs.keys():
                database.execute("DELETE FROM runs WHERE id = ?", (gone,))
            for run_id, run in runs.items():
                version = _version(run)
                if indexed.get(run_id) != version:
                    self._index(database, run)

    def _index(self, database: sqlite3.Connection, run: RunDirectory) -> None:
        try:
            entry = entry_of(load_record(run))
        except DamagedFileError:
            # Not a run, or one that a crash left before it began: nothing to show.
            return
        search = " ".join(str(value) for value in msgspec.structs.astuple(entry)).lower()
        database.execute(
            "INSERT OR REPLACE INTO runs (id, version, entry, search) VALUES (?, ?, ?, ?)",
            (run.id, _version(run), msgspec.json.encode(entry), search),
        )

    def _is_live(self, entry: Entry) -> bool:
        return entry.status == "running" and RunDirectory(self._folder(entry.id)).is_live()

    def _folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """A connection with its table, whose changes are kept when the block succeeds."""
        self.root.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS runs "
                "(id TEXT PRIMARY KEY, version TEXT, entry BLOB, search TEXT)"
            )
            with database:
                yield database


def entry_of(record: Record) -> Entry:
    """The row of a record."""
    spec: dict[str, Any] = record.spec
    return Entry(
        id=record.id,
        created_ns=record.created_ns,
        status=record.status,
        identity=record.identity,
        model=subject(spec),
        parameters=record.parameters,
        batch=spec["batch"],
        context=spec["context"],
        precision=spec["precision"],
        attention=spec["attention"],
        step=spec["step"],
        optimizer=spec["optimizer"],
        compile=spec["compile"],
        device=spec["device"],
        device_name=device_name(record.environment) or spec["device"],
        median_ms=record.timing.step.median_ms if record.timing else None,
        ci_low_ms=record.timing.step.ci_low_ms if record.timing else None,
        ci_high_ms=record.timing.step.ci_high_ms if record.timing else None,
        half_width=record.timing.step.half_width if record.timing else None,
        peak_bytes=record.memory.peak_allocated_bytes if record.memory else None,
        passes=[pass_record.name for pass_record in record.passes],
        rounds=rounds_counted(record.timing),
    )


def _version(run: RunDirectory) -> str:
    """Changes whenever the row may: a new record, or the end of the supervisor."""
    try:
        written = run.record_path.stat().st_mtime_ns
    except FileNotFoundError:
        written = 0
    return f"{ENTRY_FORMAT}:{written}:{run.is_live()}"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
