"""A run directory: header, event log, record, stored or rebuilt, and the list of all runs."""

from __future__ import annotations

import calendar
import hashlib
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sysbench.core.errors import DamagedFileError, NewerFileError, SysbenchError
from sysbench.core.formatting import did_you_mean
from sysbench.core.machine.devices import device_lock
from sysbench.core.machine.interpreter import ready_python, remember_python
from sysbench.core.machine.peaks import Peak
from sysbench.core.record.blocks import PassName
from sysbench.core.record.events import AnyEvent, EventTail, encode_event
from sysbench.core.record.record import Record, decode_record, encode_record
from sysbench.core.runs.job_directory import (
    JobDirectory,
    end_torn_line,
    job_with_id,
    new_job_folder,
)
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.own_model import JOB, OWN_MODEL
from sysbench.core.spec.passes import check_passes, check_repeat
from sysbench.core.spec.spec import RunSpec, subject
from sysbench.core.storage import (
    UNREADABLE_JSON,
    has_folder,
    home,
    lock_holder,
    open_to_append,
    open_to_write,
    read_json,
    read_regular,
    write_atomically,
)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions made before the run began: ``run.json``.

    ``peak`` is the user's figure for the device. It only affects MFU and shares of the roof, so it
    is not part of the spec's identity. ``repeat`` is the number of rounds of the timing pass, each
    in a process of ``python``; empty is this program's. ``watch_options`` are those of `watch`.
    """

    id: str
    created_ns: int
    passes: list[PassName]
    spec: RunSpec
    peak: Peak | None = None
    repeat: int = 1
    python: str = ""
    watch_options: list[str] = []

    def command_line(self) -> str:
        """Return the shell command that makes such a run."""
        return command_line(self.spec, self.passes, self.repeat, self.python, self.watch_options)


class RunDirectory(JobDirectory):
    """One run on disk.

    ``run.json`` what to measure · ``events.jsonl`` all events, append-only · ``record.json`` the
    result so far, ``record.sha256`` its digest · ``supervisor.lock`` held while it is live ·
    ``<pass>/log.txt`` and the pass's artifacts · ``timing/log.K.txt`` of round K of the timing.
    """

    kind = "run"
    working = "is supervised"
    module = "sysbench.core.runs.supervisor"
    lock_name = "supervisor.lock"
    log_name = "supervisor.log"

    @property
    def header_path(self) -> Path:
        return self.path / "run.json"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def record_path(self) -> Path:
        return self.path / "record.json"

    @property
    def trace_path(self) -> Path:
        return self.path / "trace" / "trace.json.gz"

    @property
    def snapshot_path(self) -> Path:
        """CUDA allocator snapshot of the memory pass, pickle protocol 4."""
        return self.path / "memory" / "snapshot.pickle"

    def pass_folder(self, name: str) -> Path:
        return self.path / name

    def round_folder(self, number: int) -> Path:
        """Return the folder of a round of the timing pass; the first one's is the pass's."""
        folder = self.pass_folder("timing")
        return folder if number == 1 else folder / f"round-{number}"

    def log_path(self, name: str, number: int = 1) -> Path:
        """Return the file with stdout and stderr of a pass's worker."""
        return self.pass_folder(name) / ("log.txt" if number == 1 else f"log.{number}.txt")

    def header(self) -> Header:
        """Read ``run.json``; DamagedFileError if it is absent or unreadable."""
        header = self.read(self.header_path.name, Header)
        return header if header.id == self.id else msgspec.structs.replace(header, id=self.id)

    def record(self) -> Record:
        """Read ``record.json``; DamagedFileError if it is absent or unreadable."""
        try:
            data = read_json(self.record_path)
        except OSError as error:
            raise DamagedFileError(f"{self.record_path}: {error}") from error
        record = decode_record(data, self.record_path)
        _check_spec(record, self.record_path)
        # A copy under another name is the run of that name; and a record cannot name another run.
        return record if record.id == self.id else msgspec.structs.replace(record, id=self.id)

    @property
    def digests_path(self) -> Path:
        """SHA-256 of the last two records that were written, one a line, newest first."""
        return self.path / "record.sha256"

    def write_record(self, record: Record) -> None:
        data = encode_record(record)
        # Its digest first, next to the last one: even after a crash in between, the record has one.
        digests = [_digest(data), *self._digests()[:1]]
        write_atomically(self.digests_path, "".join(f"{one}\n" for one in digests).encode())
        write_atomically(self.record_path, data)

    def is_record_as_written(self) -> bool:
        """Return false if something other than `write_record` changed ``record.json``.

        True if unknown: without the file, and in a run of a version without digests.
        """
        digests = self._digests()
        try:
            return not digests or _digest(read_regular(self.record_path)) in digests
        except (OSError, DamagedFileError):
            return True

    def _digests(self) -> list[str]:
        try:
            return read_regular(self.digests_path).decode("ascii").split()
        except (OSError, DamagedFileError, UnicodeDecodeError):
            return []

    def tail(self) -> EventTail:
        return EventTail(self.events_path)

    def is_beginning(self) -> bool:
        """Whether the run was created just now and its supervisor may still be starting."""
        try:
            if self.lock_path.exists() or self.events_path.exists():
                return False
            seconds = (time.time_ns() - self.header().created_ns) / 1e9
        except (OSError, DamagedFileError):
            return False
        return 0 <= seconds < BEGIN_SECONDS

    def is_queued(self) -> bool:
        """Whether a supervisor works on the run while another process holds its device.

        False if the header cannot be read.
        """
        pid = self.pid()
        try:
            first, *_ = self.header().spec.devices
        except (OSError, SysbenchError):
            return False
        holder = lock_holder(device_lock(first))
        return pid is not None and holder is not None and holder != pid


_SPEC_HAS = {
    **dict.fromkeys(("batch", "context"), int),
    **dict.fromkeys(("model", "precision", "attention", "step", "optimizer", "compile"), str),
    "device": str,
}
"""Required keys of a spec of any version, with their types."""
_SIZES = {"batch", "context", "d_model", "layers", "heads"}


def _check_spec(record: Record, source: Path) -> None:
    """Raise DamagedFileError if a record's spec lacks required keys or types."""
    has = {"model": str, "device": str} if record.spec.get("workload") == JOB else _SPEC_HAS
    for key, kind in has.items():
        if not isinstance(record.spec.get(key), kind):
            raise DamagedFileError(
                f"{source} is not a run's record: spec.{key} is not of type {kind.__name__}"
            )
    least = 0 if record.spec.get("workload") == OWN_MODEL else 1
    for key in _SIZES & record.spec.keys():
        if not isinstance(record.spec[key], int) or not least <= record.spec[key] < 2**31:
            raise DamagedFileError(f"{source} is not a run's record: spec.{key} is not a size")
    for key, value in record.spec.items():
        if not isinstance(value, int | float | str):
            raise DamagedFileError(f"{source} is not a run's record: spec.{key} is not a value")


def create_run(
    spec: RunSpec,
    passes: Sequence[PassName],
    root: Path | None = None,
    *,
    peak: Peak | None = None,
    repeat: int = 1,
    python: str | None = None,
    watch_options: Sequence[str] = (),
) -> RunDirectory:
    """Make a new run directory with its header under ``root`` (default: the data folder).

    Raises InterpreterError if workers cannot run in ``python`` (default: the chosen one), SpecError
    if the workload does not support a pass or the number of rounds.
    """
    check_passes(spec, passes)
    check_repeat(repeat, passes)
    python = remember_python(ready_python(python))
    created_ns = time.time_ns()
    label = re.sub(r"[^A-Za-z0-9.]+", "-", subject(msgspec.to_builtins(spec)))
    run = RunDirectory(new_job_folder(runs_folder(root), created_ns, label))
    header = Header(
        id=run.id,
        created_ns=created_ns,
        passes=list(passes),
        spec=spec,
        peak=peak,
        repeat=repeat,
        python=python,
        watch_options=list(watch_options),
    )
    run.write(run.header_path.name, header)
    return run


def runs_folder(root: Path | None = None) -> Path:
    return (root or home()) / "runs"


def is_run_id(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def list_runs(root: Path | None = None) -> list[RunDirectory]:
    """Return all runs, newest first, unreadable ones included."""
    folder = runs_folder(root)
    if not has_folder(folder):
        return []
    with os.scandir(folder) as entries:
        names = sorted((entry.name for entry in entries if _may_be_run(entry)), reverse=True)
    return [RunDirectory(folder / name) for name in names]


def _may_be_run(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder whose name can be an id in JSON."""
    try:
        return _is_text(entry.name) and entry.is_dir()
    except OSError:  # a link that points to itself, or a folder that this user may not read
        return False


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:  # bytes of no encoding, which file systems allow
        return False


def newest_run(root: Path | None = None) -> RunDirectory | None:
    """Return the run that was created last; None without a run with a readable creation time.

    An id has the local time in seconds: it cannot order runs of one second, nor of an hour that a
    clock passes twice.
    """
    newest, newest_ns, first_stamp = None, 0, None
    for run in list_runs(root):
        stamp = _stamp(run)
        if first_stamp and stamp and first_stamp - stamp > CLOCKS_APART_SECONDS:
            break
        created_ns = _created_ns(run)
        if created_ns is not None:
            first_stamp = first_stamp or stamp
            if newest is None or created_ns > newest_ns:
                newest, newest_ns = run, created_ns
    return newest


def newest_record() -> Record | None:
    """Return the record of the newest of the last `MAX_LOOKED_AT` runs that measured something."""
    for run in list_runs()[:MAX_LOOKED_AT]:
        try:
            record = run.record()
        except DamagedFileError:  # it is live, or unreadable
            continue
        if record.telemetry is not None or record.pass_named("timing") is not None:
            return record
    return None


MAX_LOOKED_AT = 10

CLOCKS_APART_SECONDS = 26 * 3600
"""Largest difference of local times between any two time zones."""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _stamp(run: RunDirectory) -> int | None:
    """Return the seconds of the local time in an id, without time zone; None for other names."""
    match = _STAMP.match(run.id)
    try:
        return None if match is None else calendar.timegm(tuple(map(int, match.groups())))
    except ValueError:  # no such month
        return None


_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-", re.ASCII)


class _Created(msgspec.Struct):
    created_ns: int


def _created_ns(run: RunDirectory) -> int | None:
    try:
        return msgspec.json.decode(read_json(run.header_path), type=_Created).created_ns
    except (OSError, DamagedFileError, *UNREADABLE_JSON):
        return None


def find_run(text: str, root: Path | None = None) -> RunDirectory:
    """Find a run by id, unique part of it, ``last``, ``last~1``, or path; raises NotFoundError."""
    if text == "last" and (newest := newest_run(root)) is not None:
        return newest
    runs = list_runs(root)
    before = text[len("last~") :] if text.startswith("last~") else ""
    if before.isdecimal() and len(before) < 9 and int(before) < len(runs):
        return sorted(runs[::-1], key=lambda run: _created_ns(run) or 0)[-1 - int(before)]
    # A whole id first: a folder of that name in the working directory is another run.
    if all(run.id != text for run in runs) and (Path(text) / "run.json").is_file():
        path = Path(text).resolve()
        if not _is_text(path.name):
            raise DamagedFileError(f"{str(path)!r} is not a run: its name is not UTF-8")
        return RunDirectory(path)
    hint = did_you_mean(text, {"last"} - {text})
    none = f"no run {text!r} under {runs_folder(root)}; {hint}`sysbench-tui list` shows all"
    return job_with_id(text, runs, none)


BEGIN_SECONDS = 20.0
"""Time until a supervisor holds its run's lock, on a busy machine."""
RESERVE_BYTES = 2**20


class EventLog:
    """Writes whole lines, which the kernel has when `append` returns.

    A reserve file is freed before the end of the run is written, so that it fits on a full disk. An
    incomplete line from a crash is terminated first, so that it damages no other.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.events_path
        self._reserve = run.path / ".reserve"

    def __enter__(self) -> EventLog:
        self._file = open_to_write(self._path, os.O_RDWR | os.O_APPEND)
        # A full disk at this point is detected by the first event.
        with suppress(OSError):
            end_torn_line(self._file)
            self.release_reserve()
            with open_to_append(self._reserve) as file:
                file.write(b"\0" * RESERVE_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        self.release_reserve()
        os.close(self._file)

    def append(self, event: AnyEvent) -> None:
        """Add one line, which may be incomplete after an OSError."""
        data = encode_event(event)
        while data:
            data = data[os.write(self._file, data) :]

    def release_reserve(self) -> None:
        self._reserve.unlink(missing_ok=True)


if TYPE_CHECKING:
    from sysbench.core.runs.builder import RecordBuilder


def replay_events(run: RunDirectory) -> RecordBuilder:
    """Fold the events of a run; raises DamagedFileError."""
    # lazy: it loads all findings; a record that is stored needs none
    from sysbench.core.runs.builder import RecordBuilder, known_environment

    builder = RecordBuilder(run, run.header(), known_environment(run))
    builder.take_in(run.tail())
    return builder


def load_record(run: RunDirectory) -> Record:
    """Load the record of a run; if its supervisor died before the end, rebuild and store it.

    A pass without an end is ``killed``, and so is the run, unless it had ended before. A record
    that was changed is not read but rebuilt from the events, with a finding. Raises
    DamagedFileError.
    """
    # Checked before reading: a supervisor that ends in between leaves a finished record.
    live = run.is_beginning() or run.is_live()
    try:
        record = run.record()
    except DamagedFileError as error:
        is_all_there_is = run.record_path.exists() and not run.events_path.exists()
        is_newer = isinstance(error, NewerFileError)
        if is_newer or not run.header_path.is_file() or is_all_there_is:
            raise
    else:
        if not live and not run.is_record_as_written():
            return _rebuild_changed(run)
        if record.status != "running" or live:
            return record
    if live:
        return replay_events(run).record()
    record = _rebuild(run)
    with suppress(OSError):  # the disk is full, or the run another user's: it is rebuilt next time
        run.write_record(record)
    return record


def _rebuild(run: RunDirectory) -> Record:
    """Rebuild the record of a run without a supervisor; raises DamagedFileError."""
    try:
        builder = replay_events(run)
        builder.abandon()
        return msgspec.structs.replace(builder.record(), ended_ns=builder.last_ns or None)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Events that were edited may contain any values of the right types.
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFileError(f"{run.events_path} does not make a record: {reason}") from error


def _rebuild_changed(run: RunDirectory) -> Record:
    if not run.events_path.is_file():
        raise DamagedFileError(f"{run.record_path} was changed, and its events are gone")
    from sysbench.core.runs.builder import RECORD_CHANGED  # lazy: as in `replay_events`

    record = _rebuild(run)
    return msgspec.structs.replace(record, findings=[RECORD_CHANGED, *record.findings])
