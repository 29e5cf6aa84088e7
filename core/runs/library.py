"""All runs of this machine, indexed in SQLite.

The run directories are the source: ``library.db`` is rebuilt if it is deleted or damaged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sysbench.core.compare.rounds import rounds_counted
from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.record.environment import device_name
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, find_run, list_runs, runs_folder
from sysbench.core.runs.stored_records import load_record
from sysbench.core.spec.fields import FIELDS
from sysbench.core.spec.spec import RunSpec, subject
from sysbench.core.storage import UNREADABLE_JSON, home, make_folder, read_json, write_atomically

FILE = "label.json"
MAX_NAME_CHARS = 40
MAX_NOTE_CHARS = 500


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Name and note of a run by the user; empty if there is none.

    The texts are untrusted: escape them for display.
    """

    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_CHARS)] = ""


UNLABELLED = Label()


def label_of(run: Path) -> Label:
    """Read the label of the run in that folder; raises DamagedFileError."""
    path = run / FILE
    try:
        return msgspec.json.decode(read_json(path, inside=run), type=Label)
    except (FileNotFoundError, NotADirectoryError):
        return UNLABELLED
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is not a label: {error}") from error


def label_known(run: Path) -> Label:
    """Read a label; empty if it cannot be read, so that the run is listed anyway."""
    try:
        return label_of(run)
    except DamagedFileError:
        return UNLABELLED


def write_label(run: Path, label: Label) -> None:
    """Replace the label of the run in that folder; an empty one removes the file.

    Raises:
        SpecError: A text is too long, or has a character that cannot be printed.
        OSError: It could not be written.
    """
    for key, text, longest in (
        ("name", label.name, MAX_NAME_CHARS),
        ("note", label.note, MAX_NOTE_CHARS),
    ):
        if len(text) > longest or not text.isprintable():
            raise SpecError(key, text, f"a line of at most {longest} printable characters")
    path = run / FILE
    if label == UNLABELLED:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, msgspec.json.encode(label))


def label_version(run: str | os.PathLike[str]) -> str:
    """Return a text that changes with the label of the run in that folder; empty without one."""
    try:
        file = os.stat(f"{os.fspath(run)}/{FILE}")
    except OSError:
        return ""
    return f":{file.st_mtime_ns}:{file.st_ino}"


BUSY_SECONDS = 10.0
ENTRY_FORMAT = 4
"""Version of `Entry`: rows of an older one are rebuilt."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list: the keys that decide its numbers, and its main numbers.

    ``ci_low_ms`` and ``ci_high_ms`` are the ends of the median's 95 % interval, ``half_width`` half
    of it as a share; null values were not measured. ``rounds`` is the number of processes behind
    them: with one the interval is inside it, with none no timing counts. ``live`` is true while a
    supervisor works on the run. ``settings`` has the other keys of the spec that are not at their
    default, ``name`` and ``note`` are the user's.
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
    settings: dict[str, Any] = {}
    name: str = ""
    note: str = ""


STEP_COLUMNS = ("median_ms", "ci_low_ms", "ci_high_ms", "half_width")
SPEC_COLUMNS = tuple(field.name for field in FIELDS if field.name in Entry.__struct_fields__)


class Library:
    """The index in one data folder (default: the user's)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home()
        self.path = self.root / "library.db"
        self.unreadable: dict[str, str] = {}

    def entries(self, text: str = "") -> list[Entry]:
        """Return runs, newest first; each word of ``text`` must occur somewhere in the row.

        Runs that cannot be read are in ``unreadable``, with the reason.
        """
        words = text.lower().split()
        clause = " AND ".join(["search LIKE ? ESCAPE '\\'"] * len(words)) or "1"
        entries = self._current(clause, [f"%{_escape(word)}%" for word in words])
        entries.sort(key=lambda entry: (entry.created_ns, entry.id), reverse=True)
        folder = runs_folder(self.root)
        return [
            msgspec.structs.replace(entry, live=True)
            if entry.status == "running" and RunDirectory(folder / entry.id).is_live()
            else entry
            for entry in entries
        ]

    def live(self) -> list[Entry]:
        return [entry for entry in self.entries() if entry.live]

    def open(self, text: str) -> RunDirectory:
        """Open the run with that id, part of one, or ``last``; raises NotFoundError."""
        return find_run(text, self.root)

    def refresh(self) -> None:
        """Bring the index up to date with the directories; rebuild it if it is damaged."""
        self._current("0", [])

    def _current(self, clause: str, likes: list[str]) -> list[Entry]:
        """Update the index and return the rows that match the clause.

        An index that is damaged, or not of this program, is rebuilt. One that cannot be written,
        because of a lock, permissions or a full disk, is left alone, and built in memory.
        """
        runs = {run.id: run for run in list_runs(self.root)}
        if not runs and not self.path.exists():
            return []
        try:
            return self._asked(str(self.path), runs, clause, likes)
        except sqlite3.DatabaseError as error:
            # The low byte is the kind of error, the rest its details.
            if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _NOT_OURS_TO_DELETE:
                return self._asked(":memory:", runs, clause, likes)
        for ending in ("", "-journal", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        return self._asked(str(self.path), runs, clause, likes)

    def _asked(
        self, place: str, runs: Mapping[str, RunDirectory], clause: str, likes: list[str]
    ) -> list[Entry]:
        with self._connect(place) as database:
            indexed = dict(database.execute("SELECT id, version FROM runs").fetchall())
            for gone in indexed.keys() - runs.keys():
                database.execute("DELETE FROM runs WHERE id = ?", (gone,))
            self.unreadable = {}
            for run_id, run in runs.items():
                version, known = _version(run), indexed.get(run_id, "")
                # A live run may have lost its supervisor, which writes nothing then.
                if known != version and not (known == version + _RUNNING and run.is_live()):
                    self._index(database, run, version)
            rows = database.execute(f"SELECT entry FROM runs WHERE {clause}", likes).fetchall()
        try:
            return [msgspec.json.decode(row[0], type=Entry) for row in rows]
        except (TypeError, *UNREADABLE_JSON) as error:
            raise sqlite3.DatabaseError(f"invalid row: {error}") from error

    def _index(self, database: sqlite3.Connection, run: RunDirectory, version: str) -> None:
        try:
            label = label_known(run.path)
            entry = msgspec.structs.replace(
                entry_of(load_record(run)), name=label.name, note=label.note
            )
        except (DamagedFileError, OSError) as error:
            # Skip a folder that never was a run, or that a crash left before it began.
            if _may_be_run(run):
                self.unreadable[run.id] = str(error)
            database.execute("DELETE FROM runs WHERE id = ?", (run.id,))
            return
        search = " ".join(str(value) for value in msgspec.structs.astuple(entry)).lower()
        database.execute(
            "INSERT OR REPLACE INTO runs (id, version, entry, search) VALUES (?, ?, ?, ?)",
            (
                *(run.id, version + _RUNNING * (entry.status == "running")),
                *(msgspec.json.encode(entry), search),
            ),
        )

    @contextmanager
    def _connect(self, place: str) -> Iterator[sqlite3.Connection]:
        """Open a connection with its table, and commit if the block succeeds.

        Raises sqlite3.DatabaseError also for an index with anything else than that table: a view
        could run forever, a trigger change what is written.
        """
        make_folder(self.root)
        with closing(sqlite3.connect(place, timeout=BUSY_SECONDS)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            with database:
                query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
                held = [row[0] for row in database.execute(query)]
                if not held:
                    database.execute(_TABLE)
                elif held != [_TABLE]:
                    raise sqlite3.DatabaseError("not an index of this version")
                yield database


_TABLE = "CREATE TABLE runs (id TEXT PRIMARY KEY, version TEXT, entry BLOB, search TEXT)"
_RUNNING = ":running"
_NOT_OURS_TO_DELETE = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_AUTH),
)
"""Errors that do not mean that the index is damaged."""


def entry_of(record: Record) -> Entry:
    spec: dict[str, Any] = record.spec
    # Before a worker has described its GPU, the machine's only name is the CPU's.
    is_named = spec["device"] == "cpu" or record.environment.get("device")
    name = device_name(record.environment) if is_named else None
    step = record.timing.step if record.timing else None
    return Entry(
        id=record.id,
        created_ns=record.created_ns,
        status=record.status,
        identity=record.identity,
        model=subject(spec),
        parameters=record.parameters,
        **{name: spec[name] for name in SPEC_COLUMNS if name != "model"},
        device_name=name or spec["device"],
        **{name: getattr(step, name) if step else None for name in STEP_COLUMNS},
        peak_bytes=record.memory.peak_allocated_bytes if record.memory else None,
        passes=[pass_record.name for pass_record in record.passes],
        rounds=rounds_counted(record.timing),
        settings={
            key: value
            for key, value in spec.items()
            if key not in SPEC_COLUMNS and value != _DEFAULTS.get(key)
        },
    )


_DEFAULTS: dict[str, Any] = msgspec.to_builtins(RunSpec())


def _version(run: RunDirectory) -> str:
    """Return a text that changes with the record and the label, and if their files are replaced."""
    try:
        file = run.record_path.stat()
    except OSError:  # there is none, or this user may not look
        return f"{ENTRY_FORMAT}:none"
    # A copy may keep the time, and an editor the size.
    facts = (file.st_mtime_ns, file.st_ctime_ns, file.st_size, file.st_ino)
    return f"{ENTRY_FORMAT}:{facts}{label_version(run.path)}"


def _may_be_run(run: RunDirectory) -> bool:
    try:
        return run.header_path.exists() or run.record_path.exists()
    except OSError:  # a folder of another user
        return True


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
