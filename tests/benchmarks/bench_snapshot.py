"""From a snapshot's file to ledger, peak and origins, beside the plain load of the same file.

Each in a fresh process. torch's own picture of it is timed, too, where it has one. Beside other
programs the seconds are theirs too: those of the processor are not.
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
from sysbench.core.memory.foreign import describe_snapshot
from sysbench.core.memory.snapshot_reading import read_snapshot
began, began_cpu = time.perf_counter(), time.process_time()
memory = describe_snapshot(read_snapshot(Path(sys.argv[1])))
assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes and memory.largest
"""
BEFORE = """
import resource, sys, time
began, began_cpu = time.perf_counter(), time.process_time()
"""
AFTER = """
print(time.perf_counter() - began, time.process_time() - began_cpu)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def write_snapshot(path: Path, events: int) -> None:
    """In a process of its own: a child's peak memory begins with its parent's."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['write_snapshot'](sys.argv[2], EVENTS)"
    generator = str(Path(__file__).with_name("big_snapshot.py"))
    command = [sys.executable, "-P", "-c", code.replace("EVENTS", str(events)), generator]
    subprocess.run([*command, str(path)], check=True)


def measured(code: str, path: Path) -> tuple[float, float, float]:
    """Seconds and those of the processor, imports left out; the most MiB that were resident."""
    command = [sys.executable, "-P", "-c", BEFORE + code + AFTER, str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, cpu_seconds, mebibytes = map(float, output.split())
    return seconds, cpu_seconds, mebibytes


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
            plain, plain_cpu, plain_memory = map(min, zip(*(one for one, _ in tries), strict=True))
            ours, our_cpu, our_memory = map(min, zip(*(one for _, one in tries), strict=True))
            print(f"  {'':17}          s     CPU s     MiB")
            print(f"  plain pickle.load   {plain:7.3f}   {plain_cpu:7.3f}   {plain_memory:5.0f}")
            print(f"  to all tables       {ours:7.3f}   {our_cpu:7.3f}   {our_memory:5.0f}", end="")
            print(f"   {ours / plain:.2f} times, {our_cpu / plain_cpu:.2f} of the CPU,", end="")
            print(f" best of {TRIES} interleaved")
            print(f"  torch's trace_plot  {torch_seconds(path, Path(name)):7.3f} s")


if __name__ == "__main__":
    main()
