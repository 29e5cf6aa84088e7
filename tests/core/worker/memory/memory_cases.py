"""Runs the memory pass on each spec, and counts what is alive in a run of its own.

``python -P memory_cases.py`` reads `Request`s, a line of JSON each, and answers each with a line.
One process imports torch, which takes longer than a small model to measure; a copy of it then
measures all specs of a request.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo  # for AdamW, once

from sysbench.core.memory.predicted import reconcile
from sysbench.core.predict.closed_form import predict
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.passes.memory_pass import measure

live_of: Callable[[RunSpec], Any] = runpy.run_path(str(Path(__file__).with_name("live_bytes.py")))[
    "live_of"
]


class Request(msgspec.Struct):
    """Specs to measure with more variables in the environment; where the results go."""

    specs: list[RunSpec]
    environment: dict[str, str]
    results: str


class Result(msgspec.Struct):
    """Result of the pass, and counted bytes: peak, end of forward, end."""

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
    return Result(reconcile(memory, spec, predict(spec)), live_of(spec))


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # as workers do: each pass collects garbage before it records
    for line in sys.stdin:
        request = msgspec.json.decode(line, type=Request)
        # oneDNN reads its limit when it is first used, so only in the copy.
        if not (copy := os.fork()):
            os.environ.update(request.environment)
            results = [result_of(spec) for spec in request.specs]
            Path(request.results).write_bytes(msgspec.json.encode(results))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), flush=True)
