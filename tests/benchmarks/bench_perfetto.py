"""From a Perfetto trace to columns, beside the JSON of the same events.

1.06 million events, the JSON of about 300 MB; each file in a process of its own, in turn. Printed
are the fastest of each, the ratio to the JSON, and the peak memory. The first layout is torch's.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EVENTS = 1_060_000
ROUNDS = 3
HERE = Path(__file__).parent
LAYOUTS: dict[str, dict[str, Any]] = {
    "blocks, texts by number": {"layout": "blocks"},
    "by time, texts by number": {"layout": "sorted"},
    "pairs, texts in full": {"layout": "pairs", "interned": False},
}
CODE = """
import json, re, sys, time
from pathlib import Path
from sysbench.core.trace.trace_reader import read_trace
def now():
    return time.perf_counter(), time.process_time()
began = now()
trace = read_trace(Path(sys.argv[1]))
seconds, cpu_seconds = (end - begin for begin, end in zip(began, now(), strict=True))
# The maximum that rusage reports begins with that of the process that started this one.
mib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps([seconds, cpu_seconds, mib, len(trace.host) + len(trace.device)]))
"""


def _measure(path: Path) -> list[float]:
    """Seconds, those of the processor, peak MiB, events."""
    command = [sys.executable, "-P", "-c", CODE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(done.stdout)
    return figures


def main(events: int = EVENTS) -> None:
    generator = runpy.run_path(str(HERE / "big_trace.py"))
    writer = runpy.run_path(str(HERE.parent / "core" / "trace" / "perfetto_writer.py"))
    with tempfile.TemporaryDirectory() as folder:
        chrome = Path(folder) / "trace.json"
        generator["write_big_trace"](chrome, events)
        files = {"JSON": chrome}
        for number, (name, style) in enumerate(LAYOUTS.items()):
            path = Path(folder) / f"{number}.pftrace"
            files[name] = writer["PerfettoWriter"](**style).write(chrome, path)
        print(f"{events:,} events, {os.cpu_count()} cores")
        runs = [{name: _measure(path) for name, path in files.items()} for _ in range(ROUNDS)]
        sizes = {name: path.stat().st_size / 2**20 for name, path in files.items()}
    least = min(run["JSON"][1] for run in runs)
    print(f"{'':24}   MiB      s   CPU s   of the JSON   peak MiB     events")
    for name, size in sizes.items():
        seconds, cpu_seconds = (min(run[name][at] for run in runs) for at in (0, 1))
        _, _, mib, count = runs[0][name]
        print(
            f"{name:24} {size:5.0f} {seconds:6.2f}  {cpu_seconds:6.2f} {cpu_seconds / least:13.2f}"
            f" {mib:10.0f} {count:10,.0f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
