"""Which module measures which pass."""

from __future__ import annotations

from .job import Job, Report


def measure_pass(job: Job, report: Report) -> None:
    """Run the job's pass; its block goes out as an event."""
    # Each imports what only it needs; a pass should not pay for another.
    if job.capture:
        from . import capturing

        capturing.measure(job, report)
    elif job.name == "timing":
        from . import timing

        timing.measure(job, report)
    elif job.name == "trace":
        from . import tracing

        tracing.measure(job, report)
    elif job.name == "numerics":
        from . import numerics

        numerics.measure(job, report)
    else:
        from . import snapshot

        snapshot.measure(job, report)
