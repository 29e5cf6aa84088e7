"""Clocks of two hosts as ranks read them, where the difference is known.

``python -m tests.validation.measure_clocks`` prints a table. Two processes join a gloo group; the
second one is in a time namespace of its own, whose monotonic clock the kernel sets ahead by a
number of seconds: the truth. They read the clock over and over, with nothing else at work and with
busy processes beside them. Needs Linux with time namespaces, and rights to make one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CASES = [(seconds, busy) for seconds in (0, 1000) for busy in (0, 4)]
READINGS = 100


def read(rank: int, folder: Path) -> None:
    """One rank; the second one writes its readings and the seconds that they took."""
    import torch
    import torch.distributed as dist

    from sysbench.core.worker.ranks.watched_collectives import HostClocks

    torch.set_num_threads(1)
    # The second rank waits for a file that the first one makes: no deadline crosses the clocks.
    store = dist.FileStore(str(folder / "store"), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    group = dist.new_group(backend="gloo")
    clocks = HostClocks(group)
    began = time.perf_counter()
    found = [clocks.read() for _ in range(READINGS)]
    took = (time.perf_counter() - began) / READINGS
    if rank:
        pairs = [(one.ahead_ns, one.error_ns) for one in found if one is not None]
        (folder / "read.json").write_text(json.dumps({"pairs": pairs, "seconds": took}))
    dist.destroy_process_group()


@contextmanager
def beside(busy: int) -> Iterator[None]:
    """That many processes which take a core each."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(busy)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def row(ahead_seconds: int, busy: int) -> str:
    """One case as a line of the table."""
    with tempfile.TemporaryDirectory() as folder, beside(busy):
        command = [sys.executable, "-P", str(Path(__file__)), "--folder", folder, "--rank"]
        clock = ["unshare", "--time", "--monotonic", str(ahead_seconds), "--fork"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen([*command, "0"], env={**environment, "GROUP_RANK": "0"}),
            subprocess.Popen([*clock, *command, "1"], env={**environment, "GROUP_RANK": "1"}),
        ]
        if any([process.wait() for process in ranks]):
            raise SystemExit("a rank failed")
        reported = json.loads((Path(folder) / "read.json").read_text())
    off = [abs(ahead - ahead_seconds * 10**9) / 1e3 for ahead, _ in reported["pairs"]]
    stated = [error / 1e3 for _, error in reported["pairs"]]
    beyond = sum(one > most for one, most in zip(off, stated, strict=True))
    cells = (
        *(f"{ahead_seconds:,}", busy, len(off)),
        *(f"{statistics.median(off):.1f}", f"{max(off):.1f}"),
        *(f"{statistics.median(stated):.1f}", f"{max(stated):.1f}", beyond),
        f"{reported['seconds'] * 1e3:.1f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """All cases, or one rank of a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.rank is not None:
        read(options.rank, options.folder)
        return
    print(
        "| ahead, s | busy processes | readings | off by, median µs | most, µs "
        "| stated, median µs | most, µs | beyond it | a reading, ms |"
    )
    print("|" + "---:|" * 9)
    for ahead_seconds, busy in CASES:
        print(row(ahead_seconds, busy), flush=True)


if __name__ == "__main__":
    main()
