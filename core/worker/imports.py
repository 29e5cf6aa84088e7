"""Import a pass, and without garbage collection, which would walk the new objects repeatedly."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sysbench.core.runs.worker_process import Job

Measure = Callable[..., bool | None]
"""Runs a pass of a `Job` and gives its block to a `Report`; False if it has reported why there is
no result. One of steps takes a `MakeWorkload`, too."""


def measure_of(job: Job) -> Measure:
    """Return the function that runs the job's pass, importing only its module."""
    module = "capture" if job.capture else job.name
    measure: Measure = importlib.import_module(f"{__package__}.passes.{module}_pass").measure
    return measure


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in the block and freeze all objects at its end.

    Imported modules live as long as the process. Collecting takes a tenth of the time of importing
    torch, and a third for its compiler.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_compiler(job: Job) -> None:
    """Import torch's compiler now if optimizers or the profiler will import it later.

    It is as large as the rest of torch, and a pass would import it with collection on.
    """
    trains = job.spec.workload == "transformer" and job.spec.step == "train"
    if trains or job.spec.compiles or job.name == "trace":
        importlib.import_module("torch._dynamo")
