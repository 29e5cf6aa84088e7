"""Exports of Nsight Systems written row by row, as its own exporter lays them out.

Tables come into being with their first row, as in a real export: whatever was not seen has
no table.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA = {
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, "
    "shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER, gridY INTEGER, "
    "gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, "
    "copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, graphId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, "
    "source INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
    "rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, "
    "int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT",
}
NAMED = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
PROCESS = 0x0001_0000_2A00_0000
"""``globalPid``: the process's number in bits 24 to 47, zeros below."""
MAIN, AUTOGRAD = PROCESS | 100, PROCESS | 101
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75


class ExportWriter:
    """Writes one export; times are nanoseconds since the capture began."""

    def __init__(self, path: Path, *, version: str = "3.25.0") -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self.database = sqlite3.connect(path)
        self.database.execute("PRAGMA journal_mode = OFF")
        self.database.execute("PRAGMA synchronous = OFF")
        self.strings: dict[str, int] = {}
        self.correlation = 0
        self.tables: set[str] = set()
        if version:
            self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value=version)

    def add(self, table: str, **values: object) -> None:
        """One row; the table is made if this is its first."""
        if table not in self.tables:
            self.tables.add(table)
            self.database.execute(f"CREATE TABLE {table} ({SCHEMA[table]})")
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        self.database.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values())
        )

    def string(self, text: str) -> int:
        """The id of a text in StringIds."""
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        thread: int = MAIN,
        domain: int = 0,
        kind: int = PUSH_POP,
        registered: bool = False,
    ) -> None:
        """An NVTX range of a thread; ``registered`` ones keep their text in StringIds."""
        text = {"textId": self.string(name)} if registered else {"text": name}
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=thread,
            domainId=domain,
            **text,
        )

    def call(self, name: str, start: int, end: int, *, thread: int = MAIN) -> int:
        """A CUDA call of the host; returns its correlation id."""
        self.correlation += 1
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=0,
            globalTid=thread,
            correlationId=self.correlation,
            nameId=self.string(name),
            returnValue=0,
        )
        return self.correlation

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        correlation: int,
        short: str = "",
        device: int = 0,
        process: int = PROCESS,
        graph_node: int | None = None,
    ) -> None:
        """A kernel; its short name is the part before the first ``<`` unless given."""
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=7,
            correlationId=correlation,
            globalPid=process,
            demangledName=self.string(name),
            shortName=self.string(short or name.partition("<")[0].split()[-1]),
            mangledName=self.string(name),
            graphNodeId=graph_node,
            **{f"{what}{axis}": 1 for what in ("grid", "block") for axis in "XYZ"},
        )

    def launch(
        self,
        name: str,
        at: int,
        start: int,
        end: int,
        *,
        thread: int = MAIN,
        device: int = 0,
        short: str = "",
    ) -> None:
        """A launch of 2 ns, and the kernel that it launched."""
        correlation = self.call("cudaLaunchKernel_v7000", at, at + 2, thread=thread)
        process = thread & ~0xFFFFFF
        self.kernel(
            name, start, end, correlation=correlation, device=device, short=short, process=process
        )

    def copy(self, at: int, start: int, end: int, *, kind: int = 1, device: int = 0) -> None:
        """An asynchronous copy; kind 1 is host to device, 2 device to host, 8 on the device."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=7,
            correlationId=self.call("cudaMemcpyAsync_v3020", at, at + 2),
            globalPid=PROCESS,
            bytes=4096,
            copyKind=kind,
        )

    def migration(self, start: int, end: int, *, kind: int) -> None:
        """Pages of unified memory that the driver moves: no call launches them."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            deviceId=0,
            contextId=1,
            streamId=7,
            globalPid=PROCESS,
            bytes=4096,
            copyKind=kind,
            srcKind=4,
            dstKind=4,
        )

    def message(self, text: str, *, severity: int) -> None:
        """A message of nsys; severity 1 is information, 2 a warning, 3 an error."""
        self.add(
            "DIAGNOSTIC_EVENT",
            timestamp=0,
            timestampType=1,
            source=1,
            severity=severity,
            text=text,
        )

    def fill(self, at: int, start: int, end: int, *, device: int = 0) -> None:
        """A memset."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=7,
            correlationId=self.call("cudaMemsetAsync_v3020", at, at + 2),
            globalPid=PROCESS,
            value=0,
            bytes=4096,
        )

    def graph(self, at: int, start: int, end: int, *, device: int = 0) -> None:
        """A CUDA graph traced as one block: no kernel rows."""
        self.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start=start,
            end=end,
            deviceId=device,
            graphId=1,
            contextId=1,
            streamId=7,
            correlationId=self.call("cudaGraphLaunch_v10000", at, at + 2),
            globalPid=PROCESS,
        )

    def write(self) -> Path:
        """Close the file."""
        self.database.commit()
        self.database.close()
        return self.path
