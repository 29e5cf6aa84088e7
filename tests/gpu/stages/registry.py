"""Every stage of the check, the most valuable first, and the process that runs one.

``python -m tests.gpu.stages.registry NAME`` reads a `Bench` as JSON on standard input, and writes
the stage's lines to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from sysbench.core.storage import HOME_VARIABLE
from tests.gpu.stages import (
    bare_loop,
    counters,
    kernel_coverage,
    memory_cells,
    rates,
    studies,
    suite,
)
from tests.gpu.stages.stage import Bench, Stage

STAGES = (
    Stage("timing", "Timing against a bare loop", 5, bare_loop.lines),
    Stage("memory", "Memory cells against the null GPU's", 7, memory_cells.lines),
    Stage("kernels", "Kernel coverage", 5, kernel_coverage.lines),
    Stage("counters", "NVML and GPM", 2, counters.lines),
    Stage("rates", "What the device can do", 3, rates.lines, on_cpu=True),
    Stage("studies", "Studies of the write-ups", 9, studies.lines, on_cpu=True),
    Stage("tests", "Tests marked gpu", 8, suite.lines),
)


def stage_named(name: str) -> Stage:
    """The row of that name.

    Raises:
        KeyError: There is none.
    """
    return {stage.name: stage for stage in STAGES}[name]


def main(name: str) -> int:
    """Run a stage; its lines leave this process as they come."""
    asked = json.loads(sys.stdin.readline())
    bench = Bench(
        stage=name,
        device=asked["device"],
        is_null=asked["is_null"],
        is_quick=asked["is_quick"],
        folder=Path(asked["folder"]),
        fixtures=Path(asked["fixtures"]),
        end=time.monotonic() + asked["seconds"],
    )
    os.environ[HOME_VARIABLE] = str(bench.folder / "home")
    for text in stage_named(name).lines(bench):
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
