"""From a snapshot's file to ledger, peak and origins, beside the plain load of the same file.

Each in a fresh process. torch's own picture of it is timed, too, where it has one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = (100_000, 1_000_000)
TRIES = 3
PLAIN = """
import gc, pickle
gc.disable()
with open(sys.argv[1], "rb") as file:
    content = pickle.load(file)
"""
OURS = """
from pathlib import Path
from sysbench.core.analysis.memory.foreign import describe_snapshot
from sysbench.core.analysis.memory.snapshot import read_snapshot
began = time.perf_counter()
memory = describe_snapshot(read_snapshot(Path(sys.argv[1])))
assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes and memory.largest
"""
BEFORE = "import resource, sys, time\nbegan = time.perf_counter()\n"
AFTER = """
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def write_snapshot(path: Path, events: int) -> None:
    """In a process of its own: a child's peak memory begins with its parent's."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['write_snapshot'](sys.argv[2], EVENTS)"
    generator = str(Path(__file__).with_name("big_snapshot.py"))
    command = [sys.executable, "-P", "-c", code.replace("EVENTS", str(events)), generator]
    subprocess.run([*command, str(path)], check=True)


def measured(code: str, path: Path) -> tuple[float, float]:
    """Seconds, imports left out, and the most MiB that were resident."""
    command = [sys.executable, "-P", "-c", BEFORE + code + AFTER, str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, mebibytes = map(float, output.split())
    return seconds, mebibytes


def torch_seconds(path: Path, folder: Path) -> float:
    """``trace_plot`` of the same file, imports included."""
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(path)]
    began = time.perf_counter()
    output = str(folder / "plot.html")
    subprocess.run([*command, "-o", output], check=True, capture_output=True, cwd=folder)
    return time.perf_counter() - began


def main() -> None:
    for events in SIZES:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "snapshot.pickle"
            write_snapshot(path, events)
            print(f"snapshot of {events:,} events, {path.stat().st_size / 2**20:.0f} MiB")
            tries = [(measured(PLAIN, path), measured(OURS, path)) for _ in range(TRIES)]
            plain, plain_memory = min(one for one, _ in tries)
            ours, our_memory = min(one for _, one in tries)
            print(f"  plain pickle.load   {plain:7.3f} s   {plain_memory:5.0f} MiB")
            print(f"  to all tables       {ours:7.3f} s   {our_memory:5.0f} MiB", end="")
            print(f"   {ours / plain:.2f} times, best of {TRIES} interleaved")
            print(f"  torch's trace_plot  {torch_seconds(path, Path(name)):7.3f} s")


if __name__ == "__main__":
    main()
