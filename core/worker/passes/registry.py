"""Which module measures which pass."""

from __future__ import annotations

from collections.abc import Callable

from ...runs.job import Job, Report


def measure_of(job: Job) -> Callable[[Job, Report], None]:
    """What runs the job's pass and reports its block."""
    # Each imports what only it needs; a pass should not pay for another.
    if job.capture:
        from .capture import measure
    elif job.name == "timing":
        from .timing import measure
    elif job.name == "trace":
        from .trace import measure
    elif job.name == "numerics":
        from .numerics import measure
    else:
        from .memory import measure
    return measure
