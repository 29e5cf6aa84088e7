"""Sizes of the documents of a large run, a trace of a million events, and eight ranks.

``python -m tests.validation.measure_documents`` writes them into docs/validation/exam.md. Eight
processes train under gloo and torch.profiler; the steps of one trace are repeated, later and with
numbers of their own, until it has a million events. A model of 2.7 billion parameters trains on the
null GPU (`make null-gpu`).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.tables.brief import MAX_BYTES
from tests.exam.__main__ import document_bytes, sizes_table, write
from tests.null_gpu.place import place
from tests.validation.measure_ranks import record

RANKS, STEPS = 8, 5
EVENTS = 1_000_000
IDS = ("External id", "Sequence number", "Ev Idx", "correlation")
VIEWS = ("", " --brief", " --section findings", " --section tree --depth 3")
LARGE = ("cs336-2025/2.7B", "device=cuda", "batch=2", "context=1024", "precision=bf16")
"""A larger batch does not fit into 80 GB."""
RUN_VIEWS = (
    *(" --brief", "", " --top 20", " --min-share 1%", " --section findings"),
    *(" --section kernels", " --section kernels --top 20", " --section tree --depth 3"),
    *(" --section memory", " --section memory --top 20"),
)
TRACE_VIEWS = (*VIEWS, " --section steps --top 20", " --section kernels --top 20")


def repeat_steps(events: list[dict[str, Any]], least: int) -> Iterator[dict[str, Any]]:
    """Yield the events again and again, each time after the last and with other ids."""
    timed = [event for event in events if event.get("ph") != "M" and "ts" in event]
    yield from (event for event in events if event.get("ph") == "M")
    begin = min(float(event["ts"]) for event in timed)
    span = max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed) - begin + 100
    for turn in range(-(-least // len(timed))):
        for event in timed:
            later = {**event, "ts": float(event["ts"]) + turn * span}
            name = str(event.get("name", ""))
            if name.startswith("ProfilerStep#"):
                number = int(name.partition("#")[2])
                later["name"] = f"ProfilerStep#{number + turn * STEPS}"
            if isinstance(event.get("id"), int):
                later["id"] = event["id"] + turn * 10**6
            arguments = event.get("args", {})
            moved = {key: arguments[key] + turn * 10**6 for key in IDS if key in arguments}
            yield {**later, "args": {**arguments, **moved}} if moved else later


def write_long(source: Path, target: Path) -> int:
    """Write the trace with repeated steps; return the number of its events."""
    trace = json.loads(source.read_text())
    trace["traceEvents"] = [*repeat_steps(trace["traceEvents"], EVENTS)]
    target.write_text(json.dumps(trace))
    return len(trace["traceEvents"])


def run_large() -> None:
    """Train the large model on the null GPU, with all passes, into the home of this process.

    Raises:
        subprocess.CalledProcessError: The run failed, or no null GPU is built.
    """
    board = f"null-gpu-{os.getpid()}"
    subprocess.run(
        [place().python, "-P", "-m", "sysbench.tui.cli", "run", *LARGE],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **place().environment(board=board), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    Path("/dev/shm", board).unlink(missing_ok=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[HOME_VARIABLE] = str(folder / "home")
        run_large()
        ranks = folder / "ranks8"
        ranks.mkdir()
        record(ranks, RANKS, 3, "idle", 15, STEPS)
        count = write_long(ranks / "rank0.json", folder / "million.json")
        lines = [f"show last{view}" for view in RUN_VIEWS]
        lines += [f"inspect {folder / 'million.json'}{view}" for view in TRACE_VIEWS]
        lines += [f"inspect {ranks}{view}" for view in ("", " --brief", " --section ranks")]
        sides = f"{folder / 'million.json'} {ranks / 'rank0.json'}"
        lines += [f"compare {sides}{view}" for view in ("", " --brief")]
        sizes = [*document_bytes(lines)]
        briefs = [size for line, size in sizes if "--brief" in line]
        assert max(briefs) <= MAX_BYTES, briefs
        size = (folder / "million.json").stat().st_size
        head = (
            f"`last` is `run {' '.join(LARGE)}` on the null GPU, all passes. "
            f"`million.json` has {count:,} events and {size / 1e6:.0f} MB."
        )
        table = sizes_table(sizes, folder)
    print(table)
    write("large", f"{head}\n\n{table}")


if __name__ == "__main__":
    main()
