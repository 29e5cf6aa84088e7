"""The numerics pass: what number formats make of a sum, and of a model's types."""

from __future__ import annotations

import msgspec

from ...record.events import ResultReported, StageEntered
from ...runs.job import Job, Report
from ..accumulation import accumulated
from ..autocast_dtypes import autocast_dtypes


def measure(job: Job, report: Report) -> None:
    """Run the spec's experiment; reports the numerics block.

    Raises:
        ValueError: The spec's workload has no such experiment.
    """
    spec = job.spec
    report(StageEntered(stage="measure"))
    if spec.workload == "accumulation":
        block = accumulated(spec)
    elif spec.workload == "autocast-dtypes":
        block = autocast_dtypes(spec)
    else:
        raise ValueError(f"workload = {spec.workload} has no numerics")
    report(ResultReported(block="numerics", data=msgspec.to_builtins(block)))
