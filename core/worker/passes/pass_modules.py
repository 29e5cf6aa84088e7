"""The module that measures a pass: the one of its name in this package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sysbench.core.runs.worker_job import Job

if TYPE_CHECKING:
    from sysbench.core.worker.boot import Measure


def measure_of(job: Job) -> Measure:
    """The function that runs the job's pass; with ``capture`` the one for an outside profiler.

    Only its module is imported: a pass does not pay for what another one needs.
    """
    module = "capture" if job.capture else job.name
    measure: Measure = import_module(f"{__package__}.{module}_pass").measure
    return measure
