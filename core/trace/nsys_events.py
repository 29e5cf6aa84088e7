"""The events of an nsys export as columns: GPU work, CUDA calls, NVTX ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError
from sysbench.core.trace.nsys_file import NULL, ExportFile, Integers
from sysbench.core.trace.trace_events import (
    NONE,
    PROCESS_SHIFT,
    DeviceEvents,
    EventColumns,
    HostEvents,
    Index,
    Kind,
    Numbers,
    Trace,
)

KERNEL, COPY, FILL = (f"CUPTI_ACTIVITY_KIND_{what}" for what in ("KERNEL", "MEMCPY", "MEMSET"))
GRAPH, CALL = (f"CUPTI_ACTIVITY_KIND_{what}" for what in ("GRAPH_TRACE", "RUNTIME"))
NVTX = "NVTX_EVENTS"
TABLES = (KERNEL, COPY, FILL, GRAPH, CALL, NVTX)

OF_NSYS = ("META_DATA_", "TARGET_INFO_", "ENUM_NSYS_", "ENUM_CUDA_")
"""Prefixes of table names that every export has, even without events."""
PUSH_POP, START_END, DOMAIN = (59, 70), (60, 71), 75
"""``eventType`` of ranges: of NVTX itself, and of text files in its format."""
THREAD_BITS = PID_BITS = 0xFFFFFF
PID_SHIFT = 24
"""The low 24 bits of ``globalTid`` are the thread, the others the process's ``globalPid``, whose
low 24 bits are the process id."""
COPY_KINDS = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host"),
    *("Array-to-Array", "Array-to-Device", "Device-to-Array", "Device-to-Device"),
    *("Host-to-Host", "Peer-to-Peer", "Unified Host-to-Device", "Unified Device-to-Host"),
    "Unified Device-to-Device",
)
"""By ``copyKind``, for exports without the table `COPY_ENUM`."""
COPY_ENUM = "ENUM_CUDA_MEMCPY_OPER"
HOST_MEMORY = {0: "Pageable", 1: "Pinned"}
"""By ``srcKind`` and ``dstKind``, as ENUM_CUDA_MEM_KIND labels them."""
UNKNOWN_COPY = COPY_KINDS[0]
FILL_NAME, GRAPH_NAME = "[CUDA memset]", "[CUDA graph]"
CALL_VERSION = re.compile(r"(_ptsz|_ptds)?_v\d+$")

MAX_SPAN_NS = 10**15
MAX_CORRELATION = 2**32
MAX_DEVICES = 1024


OPERATOR = re.compile(r"[a-z_][a-z0-9_]*::\w")
"""Lower-case namespace: aten::mm, c10d::allreduce_; FSDP::forward is a range."""
OPERATOR_FACTS = re.compile(r", (seq|op_id|sizes) = (\d{0,18})")
"""Suffix of an operator name by torch's emit_nvtx; differs between calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysWork(DeviceEvents):
    """Work of the devices; ``short`` is the name without template arguments."""

    short: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(HostEvents):
    """CUDA calls of the host."""

    process: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysRanges(Calls):
    """NVTX ranges; ``style`` is 0 for push/pop, 1 for start/end.

    Ranges of torch's emit_nvtx around operators are operators, with the sequence number that links
    a backward node to the operator that created it; their names are without `OPERATOR_FACTS`.
    ``label`` is the whole name with its domain, an index of `NsysEvents.labels`. ``crosses`` marks
    ranges ended by another thread.
    """

    style: Index
    label: Index
    crosses: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysEvents:
    """Events of one export; nanoseconds since ``base_ns`` of the export's clock.

    ``work`` are kernels, copies and fills. ``graphs`` are CUDA graphs traced as one block each.
    """

    names: list[str]
    labels: list[str]
    base_ns: int
    work: NsysWork
    graphs: NsysWork
    calls: Calls
    ranges: NsysRanges

    @property
    def trace(self) -> Trace:
        host = HostEvents.joined((self.ranges, self.calls))
        process = np.r_[self.ranges.process, self.calls.process]
        return Trace(
            names=self.names,
            base_ns=self.base_ns,
            host=replace(host, thread=process << PROCESS_SHIFT | host.thread),
            device=DeviceEvents.joined((self.work, self.graphs)),
        )


def read_nsys_events(file: ExportFile) -> NsysEvents:
    """Read the event tables; nsys creates a table with its first row, so any may be absent.

    Raises:
        DamagedFileError: The database is no nsys export, or has impossible values.
    """
    if not set(TABLES) & file.tables and not any(name.startswith(OF_NSYS) for name in file.tables):
        raise DamagedFileError(f"{file.path} is a database, but nsys did not export it")
    file.expect((*TABLES, NVTX))  # twice: NVTX's texts are read in a query by themselves
    reader = _Reader(file)
    calls, ranges = reader.calls(), reader.ranges()
    work = NsysWork.joined([reader.kernels(), reader.copies(), reader.fills()])
    graphs = reader.graphs()
    base_ns = _base(file, [work, graphs, calls, ranges])
    return NsysEvents(
        names=list(reader.names),
        labels=list(reader.labels),
        base_ns=base_ns,
        work=work.since(base_ns),
        graphs=graphs.since(base_ns),
        calls=calls.since(base_ns),
        ranges=ranges.since(base_ns),
    )


class _Reader:
    def __init__(self, file: ExportFile) -> None:
        self.file = file
        self.names, self.labels = Numbers(), Numbers()
        self._threads, self._processes = Numbers(), Numbers()

    def kernels(self) -> NsysWork:
        rows = self._work(KERNEL, ("demangledName", "shortName"))
        short = self._named(rows["shortName"])
        return self._made(Kind.KERNEL, rows, self._named(rows["demangledName"]), short)

    def copies(self) -> NsysWork:
        rows = self._work(COPY, ("copyKind", "bytes"), ("srcKind", "dstKind"))
        ends = zip(*(rows[key].tolist() for key in ("copyKind", "srcKind", "dstKind")), strict=True)
        kinds = self._copy_kinds()
        directions = [(kinds.get(kind, UNKNOWN_COPY), *memory) for kind, *memory in ends]
        labels = [f"[CUDA memcpy {direction}]" for direction, *_ in directions]
        memory = [_host_memory(*direction) for direction in directions]
        short = self.names.of(labels)
        names = self.names.of(list(map("".join, zip(labels, memory, strict=True))))
        return self._made(Kind.COPY, rows, names, short)

    def _copy_kinds(self) -> dict[int, str]:
        ids = self.file.integers(COPY_ENUM, ("id",))["id"].tolist()
        labels = zip(ids, self.file.texts(COPY_ENUM, "label"), strict=True)
        return dict(enumerate(COPY_KINDS)) | {kind: label for kind, label in labels if label}

    def fills(self) -> NsysWork:
        rows = self._work(FILL, ())
        return self._made(Kind.FILL, rows, self.names.of([FILL_NAME] * len(rows["start"])))

    def graphs(self) -> NsysWork:
        rows = self._work(GRAPH, ())
        return self._made(Kind.KERNEL, rows, self.names.of([GRAPH_NAME] * len(rows["start"])))

    def calls(self) -> Calls:
        rows = self.file.integers(CALL, ("start", "end", "nameId"), ("globalTid", "correlationId"))
        strings = self.file.strings(rows["nameId"])
        strings = {key: CALL_VERSION.sub("", name) for key, name in strings.items()}
        process = self._process(rows["globalTid"])
        none = np.full(len(process), NONE)
        return Calls(
            kind=np.full(len(process), int(Kind.RUNTIME)),
            name=self._named(rows["nameId"], strings),
            thread=_number(rows["globalTid"], self._threads),
            process=process,
            start=rows["start"],
            end=np.maximum(rows["start"], rows["end"]),
            correlation=_launch(process, rows["correlationId"]),
            sequence=none,
            operands=none,
        )

    def ranges(self) -> NsysRanges:
        more = ("end", "globalTid", "endGlobalTid", "domainId", "textId")
        rows = self.file.integers(NVTX, ("start", "eventType"), more)
        names = self._range_names(rows["textId"])
        kinds, thread = rows["eventType"], rows["globalTid"]
        process = self._process(thread)
        is_range = np.isin(kinds, (*PUSH_POP, *START_END)) & (thread != NULL)
        is_range[[row for row, name in enumerate(names) if name is None]] = False
        kept = np.flatnonzero(is_range)
        labels = names
        if (kinds == DOMAIN).any():
            labels = _with_domains(names, kinds, rows["domainId"], thread >> PID_SHIFT & PID_BITS)
        facts = [_range_facts(names[row] or "") for row in kept.tolist()]
        start, end, other_end = (rows[name][kept] for name in ("start", "end", "endGlobalTid"))
        # A range still open when the recording ended is closed at the last time of any range.
        last = max(start.max(initial=NULL), end.max(initial=NULL))
        return NsysRanges(
            kind=np.array([kind for _, kind, _ in facts], dtype=np.int64),
            name=self.names.of([name for name, _, _ in facts]),
            thread=_number(thread, self._threads)[kept],
            process=process[kept],
            start=start,
            end=np.maximum(start, np.where(end == NULL, last, end)),
            correlation=np.full(len(kept), NONE),
            sequence=np.array([sequence for _, _, sequence in facts], dtype=np.int64),
            operands=np.full(len(kept), NONE),
            style=np.isin(kinds[kept], START_END).astype(np.int64),
            label=self.labels.of([labels[row] or "" for row in kept.tolist()]),
            crosses=(other_end != NULL) & (other_end != thread[kept]),
        )

    def _range_names(self, ids: Integers) -> list[str | None]:
        """Return the registered text of each NVTX event, else its inline text, else None."""
        names = self.file.texts(NVTX, "text")
        strings = self.file.strings(ids)
        for row in np.flatnonzero(ids != NULL).tolist():
            names[row] = strings.get(int(ids[row]), names[row])
        return names

    def _work(
        self, table: str, more: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Integers]:
        return self.file.integers(
            table,
            ("start", "end", "deviceId", *more),
            ("correlationId", "globalPid", "streamId", *optional),
        )

    def _made(
        self, kind: Kind, rows: dict[str, Integers], name: Integers, short: Integers | None = None
    ) -> NsysWork:
        start = rows["start"]
        return NsysWork(
            kind=np.full(len(start), int(kind)),
            name=name,
            short=name if short is None else short,
            device=rows["deviceId"],
            stream=np.where(rows["streamId"] == NULL, NONE, rows["streamId"]),
            start=start,
            end=np.maximum(start, rows["end"]),
            correlation=_launch(self._process(rows["globalPid"]), rows["correlationId"]),
            collective=np.full(len(start), NONE),
            bytes=rows.get("bytes", np.full(len(start), NONE)),
        )

    def _process(self, global_id: Integers) -> Integers:
        global_pid = np.where(global_id == NULL, NULL, global_id & ~THREAD_BITS)
        return _number(global_pid, self._processes)

    def _named(self, ids: Integers, strings: dict[int, str] | None = None) -> Integers:
        strings = self.file.strings(ids) if strings is None else strings
        unique, index = np.unique(ids, return_inverse=True)
        texts = [strings.get(key, f"[no name, string {key}]") for key in unique.tolist()]
        return self.names.of(texts)[index]


def _host_memory(direction: str, source: int, target: int) -> str:
    """Return `` (Pageable)`` or `` (Pinned)`` for a copy from or to the host, if known."""
    memory = {"Host-to-Device": source, "Device-to-Host": target}.get(direction, NULL)
    return f" ({HOST_MEMORY[memory]})" if memory in HOST_MEMORY else ""


def _range_facts(text: str) -> tuple[str, Kind, int]:
    """Return name, kind and sequence number of a range."""
    facts = OPERATOR_FACTS.search(text)
    name = text[: facts.start()] if facts else text
    sequence = int(facts[2]) if facts and facts[1] == "seq" and facts[2] else NONE
    return name, Kind.OPERATOR if OPERATOR.match(name) else Kind.ANNOTATION, sequence


def _number(values: Integers, numbers: Numbers) -> Integers:
    unique, index = np.unique(values, return_inverse=True)
    number_of_unique = [-1 if value == NULL else numbers[value] for value in unique.tolist()]
    return np.array(number_of_unique, dtype=np.int64)[index]


def _with_domains(
    names: list[str | None], kinds: Integers, domain: Integers, pid: Integers
) -> list[str | None]:
    keys = list(zip(domain.tolist(), pid.tolist(), strict=True))
    domain_rows = np.flatnonzero(kinds == DOMAIN).tolist()
    prefixes = {keys[row]: f"{names[row]}:" for row in domain_rows if names[row]}
    return [f"{prefixes.get(key, '')}{name or ''}" for key, name in zip(keys, names, strict=True)]


def _launch(process: Integers, correlation: Integers) -> Integers:
    # Ids are of 32 bits: a larger one would run into the bits of the process.
    valid = (process >= 0) & (correlation >= 0) & (correlation < MAX_CORRELATION)
    # An id of 0 is valid here, but 0 means none in a trace.
    return np.where(valid, process * MAX_CORRELATION + correlation + 1, 0)


def _base(file: ExportFile, columns: Sequence[EventColumns]) -> int:
    used = [events for events in columns if len(events)]
    if not used:
        return 0
    first = min(int(events.start.min()) for events in used)  # Python's integers do not overflow
    last = max(int(events.end.max()) for events in used)
    if last - first > MAX_SPAN_NS:
        raise DamagedFileError(f"{file.path}: its times span {(last - first) / 1e9:.3g} s")
    for events in used:
        # Summed as floats, which do not wrap around; half the range leaves room for rounding.
        if float((events.end - events.start).sum(dtype=np.float64)) > np.iinfo(np.int64).max / 2:
            raise DamagedFileError(f"{file.path}: the sum of its durations is out of range")
    return first
