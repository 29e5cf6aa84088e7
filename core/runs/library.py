"""All runs of this machine, with an index of their main numbers.

The run directories are the source: ``library.json`` is rebuilt if it is deleted or damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sysbench.core.compare.rounds import rounds_counted
from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.record.environment import device_name
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import (
    RunDirectory,
    find_run,
    list_runs,
    load_record,
    runs_folder,
)
from sysbench.core.spec.command_line import job_command
from sysbench.core.spec.fields import FIELDS, as_whole_number
from sysbench.core.spec.own_model import JOB
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

    Raises SpecError for a text that is too long or cannot be printed, or OSError.
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


ENTRY_FORMAT = 5
"""Version of `Entry`: rows of an older one are rebuilt."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list: the keys that decide its numbers, and its main numbers.

    ``ci_low_ms`` and ``ci_high_ms`` are the ends of the median's 95 % interval, ``half_width`` half
    of it as a share; null values were not measured. ``rounds`` is the number of processes behind
    them: with one the interval is inside it, with none no timing counts. ``live`` is true while a
    supervisor works on the run. ``settings`` has the other keys of the spec that are not at their
    default, ``name`` and ``note`` are the user's. ``command`` is that of a watched job, whose sizes
    are 0 and whose other settings are empty.
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
    command: str = ""


STEP_COLUMNS = ("median_ms", "ci_low_ms", "ci_high_ms", "half_width")
SPEC_COLUMNS = tuple(
    field.name
    for field in FIELDS
    if field.name in Entry.__struct_fields__ and field.name != "command"
)


class _Row(msgspec.Struct, frozen=True):
    version: str
    entry: Entry


class Library:
    """The index in one data folder (default: the user's)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home()
        self.path = self.root / "library.json"
        self.unreadable: dict[str, str] = {}

    def entries(self, text: str = "", others: Sequence[Entry] = ()) -> list[Entry]:
        """Return runs, newest first; each word of ``text`` must occur somewhere in the row.

        ``others`` are rows of runs that are not here, such as those of bundles.

        Runs that cannot be read are in ``unreadable``, with the reason.
        """
        words = text.lower().split()
        by_id = {entry.id: entry for entry in (*others, *self._current())}
        entries = [entry for entry in by_id.values() if not words or _has(entry, words)]
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
        self._current()

    def _current(self) -> list[Entry]:
        """Update the index and return its rows.

        One that cannot be written, because of permissions or a full disk, is made in memory.
        """
        rows: dict[str, _Row] = {}
        with suppress(OSError, DamagedFileError, *UNREADABLE_JSON):
            rows = msgspec.json.decode(read_json(self.path), type=dict[str, _Row])
        indexed: dict[str, _Row] = {}
        self.unreadable = {}
        for run in list_runs(self.root):
            version, row = _version(run), rows.get(run.id)
            if row is None or (row.version, row.entry.id) != (version, run.id):
                row = self._indexed(run, version)
            elif row.entry.status == "running" and not run.is_live():
                row = self._indexed(run, version)  # its supervisor may have died
            if row is not None:
                indexed[run.id] = row
        if indexed != rows:
            with suppress(OSError):
                make_folder(self.root)
                write_atomically(self.path, msgspec.json.encode(indexed))
        return [row.entry for row in indexed.values()]

    def _indexed(self, run: RunDirectory, version: str) -> _Row | None:
        try:
            label = label_known(run.path)
            entry = entry_of(load_record(run))
        except (DamagedFileError, OSError) as error:
            # Skip a folder that never was a run, or that a crash left before it began.
            if _may_be_run(run):
                self.unreadable[run.id] = str(error)
            return None
        return _Row(version, msgspec.structs.replace(entry, name=label.name, note=label.note))


def _has(entry: Entry, words: list[str]) -> bool:
    text = " ".join(map(str, msgspec.structs.astuple(entry))).lower()
    return all(word in text for word in words)


def entry_of(record: Record) -> Entry:
    spec: dict[str, Any] = record.spec
    # Before a worker has described its GPU, the machine's only name is the CPU's.
    is_named = spec["device"] == "cpu" or record.environment.get("device")
    name = device_name(record.environment) if is_named else None
    step = record.timing.step if record.timing else None
    columns: dict[str, Any] = {name: getattr(step, name, None) for name in STEP_COLUMNS}
    known = spec if spec.get("workload") != JOB else _OF_A_JOB | spec
    columns |= {name: known[name] for name in SPEC_COLUMNS if name != "model"}
    return Entry(
        id=record.id,
        created_ns=record.created_ns,
        status=record.status,
        identity=record.identity,
        model=subject(spec),
        parameters=record.parameters,
        device_name=name or spec["device"],
        **columns,
        peak_bytes=record.memory.peak_allocated_bytes if record.memory else None,
        command=job_command(spec) if spec.get("workload") == JOB else "",
        passes=[pass_record.name for pass_record in record.passes],
        rounds=rounds_counted(record.timing),
        settings={
            key: value
            for key, value in spec.items()
            if key not in (*SPEC_COLUMNS, "workload", "command") and value != _DEFAULTS.get(key)
        },
    )


_OF_A_JOB: dict[str, Any] = {
    field.name: 0 if field.convert is as_whole_number else "" for field in FIELDS
} | {"step": JOB}
"""Columns of a watched command, whose settings are its own."""
_DEFAULTS: dict[str, Any] = msgspec.to_builtins(RunSpec())


def _version(run: RunDirectory) -> str:
    """Return a text that changes with the record and the label, and if their files are replaced."""
    try:
        file = run.record_path.stat()
    except OSError:  # there is none, or this user may not look
        return f"{ENTRY_FORMAT}:none"
    # A copy may keep the time, and an editor the size.
    facts = (file.st_mtime_ns, file.st_ctime_ns, file.st_size, file.st_ino)
    try:
        label = (run.path / FILE).stat()
    except OSError:  # it has none
        return f"{ENTRY_FORMAT}:{facts}"
    return f"{ENTRY_FORMAT}:{facts}:{label.st_mtime_ns}:{label.st_ino}"


def _may_be_run(run: RunDirectory) -> bool:
    try:
        return run.header_path.exists() or run.record_path.exists()
    except OSError:  # a folder of another user
        return True
