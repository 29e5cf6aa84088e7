"""Runs the memory pass on each spec, and counts what is alive in a run of its own.

``python -P memory_cases.py SPECS RESULTS`` reads a JSON list of specs and writes one of results.
Many specs share a process: torch takes longer to import than a small model to measure.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from sysbench.core.analysis.memory.predicted import reconciled
from sysbench.core.estimate.closed_form import predict
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory
from sysbench.core.runs.job import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.passes.memory import measure

live_of: Callable[[RunSpec], Any] = runpy.run_path(str(Path(__file__).with_name("live_bytes.py")))[
    "live_of"
]


class Result(msgspec.Struct):
    """What the pass said of a spec, and what was counted: peak, end of forward, end."""

    memory: Memory
    live: tuple[int, int | None, int]


def result_of(spec: RunSpec) -> Result:
    """Measure and count, one after the other."""
    events: list[AnyEvent] = []
    with tempfile.TemporaryDirectory() as folder:
        measure(Job(spec=spec, name="memory", folder=folder), events.append)
    reported = events[-1]
    assert isinstance(reported, ResultReported)
    memory = msgspec.convert(reported.data, Memory)
    return Result(reconciled(memory, spec, predict(spec)), live_of(spec))


if __name__ == "__main__":
    torch.set_num_threads(1)
    specs = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[RunSpec])
    Path(sys.argv[2]).write_bytes(msgspec.json.encode([result_of(spec) for spec in specs]))
