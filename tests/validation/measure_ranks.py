"""`inspect FOLDER` on real ranks whose waiting is known and whose clocks are skewed on purpose.

``python -m tests.validation.measure_ranks`` prints a table. Two to four processes train nothing
much under gloo and torch.profiler; one of them sleeps or computes longer before the first
collective of each step. Every rank also notes when it calls each collective, on the host's one
monotonic clock: the truth, of which `inspect` sees nothing. Then every file but the first has all
its times shifted by up to 50 ms, and the folder is read.

``--fixtures FOLDER`` writes one small job of three ranks for the tests instead.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

STEPS = 5
LARGEST_SKEW_MS = 50
CASES = [
    (ranks, cause, ms)
    for ranks in (2, 3, 4)
    for cause, ms in (("idle", 0), ("idle", 5), ("idle", 20), ("idle", 40), ("compute", 20))
]
TIME = re.compile(r'("ts": )(-?[\d.]+)')
SMALL_SEED = 15


def work(rank: int, ranks: int, late: int, cause: str, ms: float, steps: int, folder: Path) -> None:
    """One rank: its trace and its stamps into the folder."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    values, product = torch.ones(2**14), torch.ones(64, 64)
    parts = [torch.empty(2**12) for _ in range(ranks)]
    stamps: list[int] = []

    def stamped(collective: Any, *arguments: object) -> None:
        stamps.append(time.monotonic_ns())
        collective(*arguments)

    def step(held_up: bool) -> None:
        until = time.monotonic() + ms / 1000
        if held_up and cause == "idle":
            time.sleep(ms / 1000)
        while held_up and cause == "compute" and time.monotonic() < until:
            large = torch.ones(512, 512)
            large @ large
        (product @ product).relu_()
        stamped(dist.all_reduce, values)
        dist.broadcast(values, 0)
        (product @ product).relu_()
        stamped(dist.all_gather, parts, values[: 2**12])
        stamped(dist.all_reduce, values)

    for _ in range(3):
        step(held_up=False)
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as profiler:
        for number in range(steps + 1):
            if number == 1:
                stamps.clear()  # the first step is the profiler's own warm-up
            step(held_up=rank == late and number > 0)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    (folder / f"stamps{rank}.txt").write_text(json.dumps(stamps))
    dist.destroy_process_group()


def record(folder: Path, ranks: int, late: int, cause: str, ms: float, steps: int) -> list[int]:
    """Run the ranks; the true waiting of each in nanoseconds, over all steps."""
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-P", __file__, "--rank", str(rank), str(ranks)),
                *(str(late), cause, str(ms), str(steps), str(folder)),
            ],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]
    if any([process.wait(300) for process in processes]):
        raise SystemExit("a rank failed")
    stamps = [json.loads((folder / f"stamps{rank}.txt").read_text()) for rank in range(ranks)]
    last = [max(came) for came in zip(*stamps, strict=True)]
    for rank in range(ranks):
        (folder / f"stamps{rank}.txt").unlink()
    (folder / "store").unlink(missing_ok=True)
    return [sum(end - came for end, came in zip(last, own, strict=True)) for own in stamps]


def shift(path: Path, ns: int) -> None:
    """Shift all times of a trace, and take the names of this machine out of it."""

    def later(match: re.Match[str]) -> str:
        return f"{match[1]}{Decimal(match[2]) + Decimal(ns) / 1000}"

    text = TIME.sub(later, path.read_text())
    text = re.sub(r'"traceName": "[^"]*"', f'"traceName": "{path.name}"', text)
    path.write_text(re.sub(r'"host_name": "[^"]*"', '"host_name": "host"', text))


def measure(ranks: int, cause: str, ms: float, seed: int) -> str:
    """A row of the table."""
    from sysbench.core.inspection.ranks_folder import FolderDecoding

    chance = random.Random(seed)
    late = chance.randrange(ranks)
    skews = [0, *(round(chance.uniform(-50e6, 50e6)) for _ in range(ranks - 1))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        true_ns = record(folder, ranks, late, cause, ms, STEPS)
        for rank, skew in enumerate(skews):
            shift(folder / f"rank{rank}.json", skew)
        found = FolderDecoding(folder).run(lambda path, progress: None)
    named = [finding for finding in found.findings if finding.rule == "ranks-straggler"]
    numbers = named[0].numbers if named else {}
    reported = f"{numbers['rank']}, {numbers['cause'] or 'no cause'}" if named else "none"
    off_ms = [
        abs(row.waiting_ns - ns) / STEPS / 1e6 for row, ns in zip(found.rows, true_ns, strict=True)
    ]
    clock_ms = [
        abs((row.clock_ahead_ns or 0) - skew) / 1e6
        for row, skew in zip(found.rows, skews, strict=True)
    ]
    error_ms = max((row.clock_error_ns or 0) / 1e6 for row in found.rows)
    skew_ms = max(abs(skew) for skew in skews) / 1e6
    held_up = f"{late}, {cause} {ms:g} ms" if ms else "none"
    true_ms = max(true_ns) / STEPS / 1e6
    told_ms = max(row.waiting_ns for row in found.rows) / STEPS / 1e6
    return (
        f"| {ranks} | {held_up} | {reported} | {true_ms:.1f} | {told_ms:.1f} | {max(off_ms):.2f} "
        f"| {skew_ms:.1f} | {max(clock_ms):.3f} | {error_ms:.3f} |"
    )


def write_fixtures(folder: Path) -> None:
    """Three ranks of three steps, the second of which sleeps 15 ms a step; its truth beside."""
    folder.mkdir(parents=True, exist_ok=True)
    skews = [0, 37_000_000, -21_000_000]
    with tempfile.TemporaryDirectory() as name:
        recorded = Path(name)
        true_ns = record(recorded, 3, 1, "idle", 15, 3)
        for rank, skew in enumerate(skews):
            path = recorded / f"rank{rank}.json"
            shift(path, skew)
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            (folder / f"rank{rank}.json.gz").write_bytes(packed)
    truth = {"waiting_ns": true_ns, "skew_ns": skews, "late": 1, "sleep_ms": 45}
    (folder / "truth.txt").write_text(json.dumps(truth) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Be a rank, write the fixtures, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", nargs=7)
    parser.add_argument("--fixtures", type=Path)
    options = parser.parse_args(arguments)
    if options.rank:
        rank, ranks, late, cause, ms, steps, folder = options.rank
        work(int(rank), int(ranks), int(late), cause, float(ms), int(steps), Path(folder))
        return
    if options.fixtures:
        write_fixtures(options.fixtures)
        return
    print(
        "| ranks | straggler, a step | reported | most waiting, ms | reported | farthest rank, "
        "ms | skew, ms | clock off, ms | stated, ms |\n|---:|---|---|---:|---:|---:|---:|---:|---:|"
    )
    for seed, (ranks, cause, ms) in enumerate(CASES):
        print(measure(ranks, cause, ms, seed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
