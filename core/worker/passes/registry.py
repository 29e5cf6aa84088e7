"""The module that measures a pass: the one of its name in this package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ...runs.job import Job, Report

Measure = Callable[[Job, Report], bool | None]
"""Runs a pass and reports its block; False if it has no result and has reported why."""


def measure_of(job: Job) -> Measure:
    """The function that runs the job's pass; with ``capture`` the one for an outside profiler.

    Only its module is imported: a pass does not pay for what another one needs.
    """
    module = "capture" if job.capture else job.name
    measure: Measure = import_module(f".{module}", __package__).measure
    return measure
