"""Importing without garbage collection, which would walk what is made again and again."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from sysbench.core.runs.worker_process import Job


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in the block, and never walk what is alive at its end.

    Modules make a million objects that live as long as the process. Collecting is a tenth of the
    time of importing torch, and a third of that of importing its compiler.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_compiler(job: Job) -> None:
    """Import torch's compiler now if the pass will: optimizers and the profiler do so themselves.

    It is as large as the rest of torch, and in the middle of a pass nobody stops the collecting.
    """
    trains = job.spec.workload == "transformer" and job.spec.step == "train"
    if trains or job.spec.compiles or job.name == "trace":
        importlib.import_module("torch._dynamo")
