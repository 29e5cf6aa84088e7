"""Events that a run reports, one JSON line each in ``events.jsonl``.

A worker sends its events through its pipe; the supervisor adds its own and is the only writer of
the file. Every event carries ``t_ns``, nanoseconds since the Unix epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.blocks import BlockName
from sysbench.core.storage import UNREADABLE_JSON, check_decoded, open_regular

Outcome = Literal[
    "finished", "oom", "cuda-error", "failed", "killed", "hung", "cancelled", "disk-full"
]
"""How a pass ended. ``failed`` is a Python exception, ``killed`` a signal."""

Stage = Literal["import", "build", "compile", "warmup", "measure", "export", "analyse"]


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="event",
    tag=lambda name: name,
    omit_defaults=False,
):
    """Base class of all events."""

    t_ns: int = msgspec.field(default_factory=time.time_ns)


class RunStarted(Event, frozen=True):
    """The supervisor started.

    ``spec`` is the resolved spec, ``pid`` the supervisor's, ``repeat`` the planned number of rounds
    of the timing pass, ``environment`` the facts on the host.
    """

    run: str
    pid: int
    identity: str
    passes: list[str]
    spec: dict[str, Any]
    repeat: int = 1
    environment: dict[str, Any] = {}


class PassStarted(Event, frozen=True):
    """A fresh worker process started for one pass.

    The other fields are of the timing pass: the number of the round, from 1, and its place in the
    comparison that it belongs to; see `sysbench.core.record.timing.Round`. ``partner_pid`` is the
    process that it takes turns with, if it is one of a pair.
    """

    name: str
    pid: int
    round: int = 1
    experiment: str = ""
    block: int | None = None
    position: int | None = None
    side: str = ""
    duet: bool = False
    partner_pid: int | None = None


class StageEntered(Event, frozen=True):
    stage: Stage


class DeviceDescribed(Event, frozen=True):
    facts: dict[str, Any]


class FirstStepTimed(Event, frozen=True):
    """The very first step, one-time costs included: allocation, compilation, autotuning."""

    step_ms: float


class WarmupStepTimed(Event, frozen=True):
    """One warm-up step; ``index`` counts from 0, the first step included."""

    index: int
    step_ms: float


class WarmupSettled(Event, frozen=True):
    """Warm-up is over: its steps agree, or it reached its limit (``settled`` false)."""

    steps: int
    settled: bool


class StepsTimed(Event, frozen=True):
    """A batch of measured steps: one entry a step in each list, milliseconds.

    ``median_ms`` and ``half_width`` (of the 95 % interval, as a share of the median; null below six
    steps, which have no such interval) cover all steps so far. ``issue_ms`` is the host's time to
    enqueue a step, of those that began on an idle device, empty on the CPU; ``wall_ms`` the host's
    time for the whole batch.
    """

    first_index: int
    step_ms: list[float]
    phases_ms: dict[str, list[float]]
    median_ms: float
    half_width: float | None
    issue_ms: list[float] = []
    wall_ms: float | None = None


class StepCounted(Event, frozen=True):
    """Progress in a pass whose steps are not timed (trace, memory)."""

    done: int
    total: int


class MemoryRead(Event, frozen=True):
    """Memory at the end of ``phase`` of warm-up step ``step``, from 0; null after the build.

    ``allocated`` bytes are those of torch's CUDA allocator. ``resident`` bytes are the CPU
    process's resident set minus its size before the build, recording included. ``peak_bytes`` is
    their maximum since the last reset: at the build, and after the first step.
    """

    kind: Literal["allocated", "resident"]
    step: int | None
    phase: str
    held_bytes: int
    peak_bytes: int | None


class RankReading(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a watched command: ``steps`` so far, and means of the newest ones.

    ``phases_ms`` sum to ``step_ms``. ``held_bytes`` and ``peak_bytes`` are those of torch's
    allocator on CUDA; elsewhere the first is the resident set of the process, and the other null.
    """

    rank: int
    steps: int
    step_ms: float
    phases_ms: dict[str, float]
    held_bytes: int | None = None
    peak_bytes: int | None = None


class RanksRead(Event, frozen=True):
    """The ranks of a watched command; the others wait for ``slowest``, by ``late_ms`` a step.

    Both are null if the ranks do not clearly differ.
    """

    ranks: list[RankReading]
    slowest: int | None = None
    late_ms: float | None = None


class WorkStepped(Event, frozen=True):
    """Progress of a long job after the measurement: exporting, decoding."""

    what: str
    done: int
    total: int


class OutOfMemory(Event, frozen=True, kw_only=True):
    """The allocator refused a request; the worker ends after this.

    `sysbench.core.record.memory.Oom` documents the fields.
    """

    phase: str
    requested_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    limit_bytes: int | None = None
    capacity_bytes: int | None = None
    message: str
    stack: list[str]
    expression: str | None = None
    op: str | None = None
    rank: int | None = None
    missing: dict[str, str] = {}


class WorkerFailed(Event, frozen=True):
    """An exception other than out-of-memory ended the pass, or a signal ended a rank.

    ``killed`` is true for a signal, which ``kind`` then names. ``rank`` is the one that failed
    first, null if there is only one. ``place`` is the line of the user's model that was running,
    else empty.
    """

    kind: str
    message: str
    traceback: str
    is_cuda_error: bool
    killed: bool = False
    rank: int | None = None
    place: str = ""


class ResultReported(Event, frozen=True):
    """The pass's block of the record: ``block`` names it, ``data`` holds it.

    ``oom`` is the memory pass's recording when memory ran out; the event `OutOfMemory` follows it.
    """

    block: BlockName
    data: dict[str, Any]


class TelemetrySampled(Event, frozen=True):
    """One sample of devices and host: a `sysbench.core.machine.sample.Sample`.

    ``device_index`` is the measured device's NVML index, null on the CPU and if NVML cannot
    identify it; unset in events of versions without it.
    """

    sample: dict[str, Any]
    device_index: int | msgspec.UnsetType | None = msgspec.UNSET


class Noticed(Event, frozen=True):
    """A message for the log that does not end the pass."""

    message: str


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one name: the cores that they kept busy on average."""

    name: str
    cores: float


class PassEnded(Event, frozen=True):
    """A pass ended, or one round of it; ``detail`` is a sentence on its outcome.

    ``cpu_percent`` and ``own_cpu_percent`` are the shares of all of the host's cores that were
    busy, and that the worker's processes used, in the measured part of a timing pass;
    ``neighbours`` are other processes from its warm-up on. In a pair that takes turns the worker's
    processes are those of both workers. ``side`` is that of a round of a comparison.
    """

    name: str
    outcome: Outcome
    detail: str
    seconds: float
    exit_code: int | None
    round: int = 1
    cpu_percent: float | None = None
    own_cpu_percent: float | None = None
    neighbours: list[Neighbour] = []
    side: str = ""


class RoundDisturbed(Event, frozen=True):
    """A round of the timing pass does not count because of ``why``; it counts again if empty."""

    round: int
    why: str


class ClockMoved(Event, frozen=True):
    """The wall clock was set, or the machine slept.

    Later events have a ``t_ns`` that is off by this number of seconds.
    """

    seconds: float


class RunEnded(Event, frozen=True):
    """The run ended; ``record.json`` is complete. A later extra round ends it again."""

    status: Outcome


AnyEvent = (
    RunStarted
    | PassStarted
    | StageEntered
    | DeviceDescribed
    | FirstStepTimed
    | WarmupStepTimed
    | WarmupSettled
    | StepsTimed
    | StepCounted
    | MemoryRead
    | RanksRead
    | WorkStepped
    | OutOfMemory
    | WorkerFailed
    | ResultReported
    | TelemetrySampled
    | Noticed
    | PassEnded
    | RoundDisturbed
    | ClockMoved
    | RunEnded
)

_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_ENCODER = msgspec.json.Encoder()


def encode_event(event: AnyEvent) -> bytes:
    """Encode as one line; characters that are no text, as of file names, become escapes."""
    try:
        return _ENCODER.encode(event) + b"\n"
    except UnicodeEncodeError:
        return _ENCODER.encode(_as_text(msgspec.to_builtins(event))) + b"\n"


def _as_text(value: Any) -> Any:
    """Return JSON data whose texts are valid: a lone surrogate becomes ``\\udcff``."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_as_text(key): _as_text(content) for key, content in value.items()}
        case list() | tuple():
            return [_as_text(content) for content in value]
        case _:
            return value


def decode_event(line: bytes) -> AnyEvent:
    """Decode one line.

    Raises:
        DamagedFileError: The line is truncated, of an unknown kind, or far too large.
    """
    check_decoded(line, "a line of events")
    try:
        return _DECODER.decode(line)
    except UNREADABLE_JSON as error:
        raise DamagedFileError(f"not an event: {error}") from error


class EventTail:
    """Reader of a growing ``events.jsonl``, for any number of processes, without locks.

    A partial last line waits for its end. A complete line that cannot be read, or that has more
    than `MAX_LINE_BYTES`, is skipped and counted in ``skipped``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        self._offset = 0
        self._rest = bytearray()
        self._too_long = False

    def read(self) -> Iterator[AnyEvent]:
        """Yield the events since the last call, none if the file is absent; raises
        DamagedFileError.
        """
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DamagedFileError(f"{self.path}: {error}") from error
        with file:
            file.seek(self._offset)
            while data := file.read(CHUNK_BYTES):
                self._offset += len(data)
                yield from self._events_in(data)

    def _events_in(self, data: bytes) -> Iterator[AnyEvent]:
        first, *others = data.split(b"\n")
        self._rest += first
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest.clear()
            self._too_long = True
        for following in others:
            line, self._rest = bytes(self._rest), bytearray(following)
            if self._too_long:
                self._too_long = False
                self.skipped += 1
            elif line:
                try:
                    yield decode_event(line)
                except DamagedFileError:
                    self.skipped += 1


CHUNK_BYTES = 2**22
MAX_LINE_BYTES = 2**27
"""Longest line of a run's events. The largest blocks that a pass reports have a few MiB."""
