"""Files as other programs write them: a trace, a snapshot, an nsys export."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

US = 1_700_000_000_000_000
EVENT = (
    '{{"ph": "X", "cat": "kernel", "name": "gemm_kernel", "pid": 0, "tid": 7, "ts": {ts}, '
    '"dur": 5, "args": {{"device": 0, "stream": 7, "correlation": {ts}}}}}'
)


@pytest.fixture(autouse=True)
def own_home(sysbench_home: Path) -> Path:
    """Inspections are kept in the test's own home."""
    return sysbench_home


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten kernels of 5 µs, 10 µs apart, without launches."""
    return write_trace(tmp_path / "trace.json", 10)


@pytest.fixture(scope="session")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes seconds to decode, so that something can happen during that time. Do not change it."""
    return write_trace(tmp_path_factory.mktemp("trace") / "long.json", 300_000)


def write_trace(path: Path, kernels: int) -> Path:
    events = ",\n".join(EVENT.format(ts=US + 10 * index) for index in range(kernels))
    path.write_text(f'{{"traceEvents": [{events}]}}')
    return path


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Two blocks, of which one is freed: 3000 bytes at the peak."""
    moves = [("alloc", 4096, 1000), ("alloc", 8192, 2000), ("free_completed", 8192, 2000)]
    events = [
        {"action": action, "addr": address, "size": size, "time_us": at, "frames": []}
        for at, (action, address, size) in enumerate(moves)
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}, protocol=4))
    return path


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """One call that launches one kernel of 700 ns, inside a range of 2000 ns."""
    path = tmp_path / "report.sqlite"
    tables: dict[str, dict[str, Any]] = {
        "StringIds": {"id": 1, "value": "gemm_kernel"},
        "CUPTI_ACTIVITY_KIND_KERNEL": {
            **{"start": 1100, "end": 1800, "deviceId": 0, "streamId": 7, "correlationId": 5},
            **{"globalPid": 1 << 24, "demangledName": 1, "shortName": 1, "graphNodeId": None},
        },
        "CUPTI_ACTIVITY_KIND_RUNTIME": {
            **{"start": 500, "end": 600, "globalTid": (1 << 24) + 3, "correlationId": 5},
            **{"nameId": 1},
        },
        "NVTX_EVENTS": {
            **{"start": 0, "end": 2000, "eventType": 59, "text": "forward", "textId": None},
            **{"globalTid": (1 << 24) + 3, "endGlobalTid": None, "domainId": 0},
        },
    }
    with closing(sqlite3.connect(path)) as database:
        for name, row in tables.items():
            database.execute(f"CREATE TABLE {name} ({', '.join(row)})")
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO {name} VALUES ({marks})", list(row.values()))
        database.commit()
    return path


@pytest.fixture
def long_export(export: Path) -> Path:
    """Read in many steps, so that something can happen between two."""
    with closing(sqlite3.connect(export)) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 300000) "
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
            f" SELECT 2000 + i, 2001 + i, {(1 << 24) + 3}, 9 + i, 1 FROM n"
        )
        database.commit()
    return export
