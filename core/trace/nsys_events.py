"""The events of an nsys export from an untrusted source: GPU work, CUDA calls, NVTX ranges.

Only plain tables and columns are read, so no view, trigger or computed column runs. A cyclic page
tree is rejected when it returns more rows or text than a file of its size can contain.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError, NotFoundError
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

NULL = int(np.iinfo(np.int64).min)

MIN_ROW_BYTES = 8
HANDLER_STEPS = 100_000
FREE_STEPS = 10_000_000
STEPS_PER_BYTE = 32
"""Maximum steps of SQLite's virtual machine per byte; real exports need less than one."""
MAX_VALUE_BYTES = 2**26
MAX_PARAMETERS = 500
ROWS_AT_ONCE = 2**14

Integers = NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with the number of rows read so far and in total."""


@contextmanager
def open_export(path: Path, progress: Progress | None = None) -> Iterator[ExportFile]:
    """Open an export read-only; raises NotFoundError, or DamagedFileError also inside the block."""
    try:
        with path.open("rb"):
            size = path.stat().st_size
        # Immutable: takes no lock, reads no journal next to the file, never writes.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            yield ExportFile(database, path, size, progress)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (sqlite3.Error, ValueError) as error:  # a name that is no text is a ValueError
        raise DamagedFileError(f"{path} is not a valid nsys export: {error}") from error


class ExportFile:
    def __init__(
        self,
        database: sqlite3.Connection,
        path: Path,
        size: int,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self._progress = progress
        self._rows_read = self._rows_expected = 0
        self._database = database
        self._size = size
        self._most_rows = size // MIN_ROW_BYTES
        self._most_steps = FREE_STEPS + STEPS_PER_BYTE * size
        self._steps = self._text_bytes = 0
        database.text_factory = self._text
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        database.set_progress_handler(self._count_steps, HANDLER_STEPS)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        # Views and virtual tables have no root page.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        self.tables = {str(name) for (name,) in self._rows(query)}

    def expect(self, tables: Sequence[str]) -> None:
        self._rows_expected = sum(self._last_row(table) for table in tables)

    def integers(
        self, table: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Integers]:
        """Read columns of a table by name, empty if there is no such table.

        Optional columns may be absent or null, which reads as NULL. DamagedFileError for other
        values.
        """
        columns = self._columns_of(table)
        absent = ", ".join(name for name in required if name not in columns)
        if columns and absent:
            raise DamagedFileError(f"{self.path}: its table {table} has no column {absent}")
        null = f"{NULL + 1} - 1"  # the literal negates a number that does not fit 64 bits
        terms = [f'"{name}"' for name in required]
        terms += [f'COALESCE("{name}", {null})' if name in columns else null for name in optional]
        # Without an index, which could give the rows of different queries in different orders.
        query = f'SELECT {", ".join(terms)} FROM "{table}" NOT INDEXED'
        rows = self._rows(query) if columns else iter(())
        parts = []
        try:
            while len(
                part := np.fromiter(chain.from_iterable(islice(rows, ROWS_AT_ONCE)), np.int64)
            ):
                parts.append(part.reshape(-1, len(terms)))
                self._advance(len(parts[-1]))
        except (TypeError, ValueError, OverflowError) as error:
            raise DamagedFileError(
                f"{self.path} is damaged: its table {table} has a non-integer value"
            ) from error
        # Copied, so that each column lies in one piece.
        values = np.concatenate([np.empty((0, len(terms)), np.int64), *parts]).T.copy()
        return dict(zip((*required, *optional), values, strict=True))

    def texts(self, table: str, column: str) -> list[str | None]:
        """Read one text column, row by row as `integers`; None for other values."""
        columns = self._columns_of(table)
        if not columns:
            return []
        term = f'"{column}"' if column in columns else "NULL"
        rows = self._rows(f'SELECT {term} FROM "{table}" NOT INDEXED')
        texts: list[str | None] = []
        while part := list(islice(rows, ROWS_AT_ONCE)):
            texts += [value if isinstance(value, str) else None for (value,) in part]
            self._advance(len(part))
        return texts

    def strings(self, ids: Integers) -> dict[int, str]:
        if not {"id", "value"} <= self._columns_of("StringIds"):
            return {}
        strings: dict[int, str] = {}
        wanted = np.unique(ids[ids != NULL]).tolist()
        for begin in range(0, len(wanted), MAX_PARAMETERS):
            batch = wanted[begin : begin + MAX_PARAMETERS]
            marks = ", ".join("?" * len(batch))
            query = f'SELECT "id", "value" FROM "StringIds" WHERE "id" IN ({marks})'
            rows = self._rows(query, batch)
            strings.update((key, text) for key, text in rows if isinstance(text, str))
        return strings

    def facts(self, table: str) -> dict[str, str]:
        """Read a table of names and values, such as META_DATA_EXPORT; empty if absent."""
        if not {"name", "value"} <= self._columns_of(table):
            return {}
        rows = self._rows(f'SELECT "name", "value" FROM "{table}"')
        return {
            name: text for name, text in rows if isinstance(name, str) and isinstance(text, str)
        }

    def _rows(self, query: str, parameters: Sequence[int] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows one by one: a few long values could fill the memory."""
        self._text_bytes = 0
        cursor = self._database.execute(query, parameters)
        return chain(islice(cursor, self._most_rows), self._check_exhausted(cursor))

    def _advance(self, rows: int) -> None:
        self._rows_read += rows
        if self._progress is not None:
            self._progress(self._rows_read, self._rows_expected)

    def _last_row(self, table: str) -> int:
        """Return the last row id, about the number of rows; 0 if unknown.

        Counting rows would read the whole table in one step that cannot be interrupted.
        """
        if table not in self.tables:
            return 0
        try:
            ((last,),) = self._database.execute(f'SELECT max(rowid) FROM "{table}"')
        except sqlite3.OperationalError:  # a table WITHOUT ROWID
            return 0
        return min(last, self._most_rows) if isinstance(last, int) and last > 0 else 0

    def _check_exhausted(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        for _ in cursor:
            raise DamagedFileError(
                f"{self.path} is damaged: it has more rows than fit in a file of its size"
            )
        yield from ()

    def _count_steps(self) -> bool:
        self._steps += HANDLER_STEPS
        return self._steps > self._most_steps  # true aborts the query

    def _text(self, encoded: bytes) -> str:
        self._text_bytes += len(encoded)
        if self._text_bytes > self._size:
            raise DamagedFileError(
                f"{self.path} is damaged: it has more text than fits in a file of its size"
            )
        return encoded.decode("utf-8", "replace")

    def _columns_of(self, table: str) -> set[str]:
        if table not in self.tables:
            return set()
        rows = self._rows(f'PRAGMA table_xinfo("{table}")')
        return {str(row[1]) for row in rows if row[6] == 0}


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
    """Read the event tables; nsys creates a table with its first row, so any may be absent."""
    if not set(TABLES) & file.tables and not any(name.startswith(OF_NSYS) for name in file.tables):
        raise DamagedFileError(f"{file.path} is a database, but nsys did not export it")
    file.expect((*TABLES, NVTX))  # twice: NVTX's texts are read in a query by themselves
    reader = _Reader(file)
    calls, ranges = reader.calls(), reader.ranges()
    fills = reader.alike(FILL, Kind.FILL, FILL_NAME)
    work = NsysWork.joined([reader.kernels(), reader.copies(), fills])
    graphs = reader.alike(GRAPH, Kind.KERNEL, GRAPH_NAME)
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

    def alike(self, table: str, kind: Kind, name: str) -> NsysWork:
        """Read work that has one name."""
        rows = self._work(table, ())
        return self._made(kind, rows, self.names.of([name] * len(rows["start"])))

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
