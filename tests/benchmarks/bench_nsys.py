"""From an nsys export to NVIDIA's two tables, and to all of ours, beside a plain scan.

The export is of 2.3 MB where the real data is at hand, else a written one of that size. In
one process, warm, in turn: medians, and their ratio to `sqlite3` fetching every row of the
tables that hold events.
"""

from __future__ import annotations

import os
import runpy
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sysbench.core.trace.nsys_events import TABLES, open_export, read_nsys_events
from sysbench.core.trace.nsys_export import read_export
from sysbench.core.trace.nsys_projection import nvtx_of, summary

ROUNDS = 15
HERE = Path(__file__).parent
REAL = Path("nsys") / "h100_2gpu_1s.sqlite"


def scan(path: Path) -> int:
    """Every row of the tables of events, as Python sees them."""
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    rows = sum(
        len(database.execute(f"SELECT * FROM {table}").fetchall())
        for table in (*TABLES, "StringIds")
        if table in names
    )
    database.close()
    return rows


def two_tables(path: Path) -> int:
    """The kernel summary and the projection."""
    with open_export(path) as file:
        events = read_nsys_events(file)
    return len(summary(events.names, events.work.short, events.work)) + len(nvtx_of(events).rows)


def everything(path: Path) -> int:
    """The block of a record, and the kernels layer by layer."""
    return len(read_export(path).block().nvtx.rows)


def measured(calls: Mapping[str, Callable[[Path], int]], path: Path) -> dict[str, float]:
    """Median seconds of each, in turn so that a noisy machine is noisy to all."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            call(path)
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in seconds.items()}


def an_export(folder: Path) -> Path:
    """The real one, or one like it: operators with ids of their own, nested three deep."""
    data = Path(os.environ.get("SYSBENCH_TEST_DATA", HERE.parents[2] / "shared" / "data"))
    if (data / REAL).is_file():
        return data / REAL
    build = runpy.run_path(str(HERE.parent / "nsys_double" / "build.py"))
    writer = build["ExportWriter"](folder / "export.sqlite")
    for index in range(5600):
        at = 10_000 * index
        for depth, name in enumerate(("linear", "addmm", "mm")):
            number = 3 * index + depth
            writer.range(f"aten::{name}, op_id = {number}", at + depth, at + 9000 - depth)
        writer.launch(f"void kernel{index % 40}<float>(int)", at + 100, at + 5000, at + 9000)
    return Path(writer.write())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = an_export(Path(folder))
        calls = {"plain scan": scan, "both tables": two_tables, "everything": everything}
        medians = measured(calls, path)
        print(f"nsys export: {path.name}, {path.stat().st_size / 1e6:.1f} MB, {ROUNDS} rounds")
        for name, seconds in medians.items():
            ratio = seconds / medians["plain scan"]
            print(f"  {name:<12} {seconds * 1e3:7.1f} ms   {ratio:.2f} x plain scan")


if __name__ == "__main__":
    main()
