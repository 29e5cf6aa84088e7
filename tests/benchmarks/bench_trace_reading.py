"""From a chrome trace to kernels by phase, module and operator: ours beside json and pandas.

1.06 million events, about 300 MB; each side in a process of its own, in turn; ours also to all
tables of ``inspect``. Printed are the fastest of each, their ratio, and the peak memory. On a busy
machine the seconds of the clock grow, those of the processor hardly do.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

EVENTS = 1_060_000
ROUNDS = 3

OURS = """
from pathlib import Path
from sysbench.core.trace.trace_reader import read_trace
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import time_ledger
began = now()
table = kernel_rows(time_ledger(read_trace(Path(sys.argv[1]))), by_layer=True)
report(sum(row.calls for row in table.rows))
"""
ALL_TABLES = """
from pathlib import Path
from sysbench.core.inspection.reading import read_tables
began = now()
tables = read_tables(Path(sys.argv[1]), lambda *progress: None)
report(sum(row.calls for row in tables.layers.rows))
"""
PANDAS = """
import pandas as pd
began = now()
with open(sys.argv[1]) as file:
    events = pd.DataFrame(json.load(file)["traceEvents"])
def correlations(category):
    chosen = events[events.cat == category]
    return chosen.assign(correlation=[args["correlation"] for args in chosen.args])
kernels = correlations("kernel").merge(
    correlations("cuda_runtime")[["correlation", "ts", "tid"]], on="correlation", how="left",
    suffixes=("", "_launch"),
).dropna(subset="ts_launch").sort_values("ts_launch").rename(columns={"tid_launch": "thread"})
kernels["thread"] = kernels.thread.astype("int64")
for column, prefix, by in (
    ("phase", "phase:", None), ("module", "mod:", None), ("operator", "aten:", "thread")
):
    ranges = events[events.name.str.startswith(prefix)][["ts", "dur", "name", "tid"]]
    ranges.columns = ["begin", "length", column, "thread"]
    if by is None:
        ranges = ranges.drop(columns="thread")
    kernels = pd.merge_asof(
        kernels, ranges.sort_values("begin"), left_on="ts_launch", right_on="begin", by=by
    )
    outside = kernels.ts_launch > kernels.begin + kernels.length
    kernels.loc[outside, column] = ""
    kernels = kernels.drop(columns=["begin", "length"])
table = kernels.groupby(["name", "phase", "module", "operator"], dropna=False).dur.agg(
    ["count", "sum", "min", "max"]
)
report(int(table["count"].sum()))
"""
FRAME = """
import json, resource, sys, time
def now():
    return time.perf_counter(), time.process_time()
def report(calls):
    seconds, cpu_seconds = (end - begin for begin, end in zip(began, now(), strict=True))
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, cpu_seconds, mib, calls]))
"""


def _measure(path: Path, code: str) -> list[float]:
    """Seconds, those of the processor, peak MiB, kernels."""
    command = [sys.executable, "-P", "-c", FRAME + code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(done.stdout)
    return figures


def main() -> None:
    generator = runpy.run_path(str(Path(__file__).with_name("big_trace.py")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        generator["write_big_trace"](path, EVENTS)
        print(f"{EVENTS:,} events, {path.stat().st_size / 2**20:.0f} MiB, {os.cpu_count()} cores")
        sides = {"ours": OURS, "all tables": ALL_TABLES, "json + pandas": PANDAS}
        runs = [{side: _measure(path, code) for side, code in sides.items()} for _ in range(ROUNDS)]
    best = {side: min(run[side] for run in runs) for side in sides}
    slowest = best["json + pandas"][0]
    print(f"{'':13}      s   times as fast   CPU s   MiB   kernels")
    for side, (seconds, _, mib, calls) in best.items():
        cpu_seconds = min(run[side][1] for run in runs)
        print(
            f"{side:13} {seconds:6.2f}   {slowest / seconds:13.2f}   {cpu_seconds:5.2f}"
            f"   {mib:3.0f}   {calls:,.0f}"
        )


if __name__ == "__main__":
    main()
