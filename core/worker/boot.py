"""Start of a process that measures: set up torch by the spec, set limits, run the pass.

Importing this module imports torch, so a process reports its first event before that.
"""

from __future__ import annotations

from collections.abc import Callable

from sysbench.core.record.events import DeviceDescribed
from sysbench.core.runs.worker_job import Job, Report
from sysbench.core.worker.failures import report_failure
from sysbench.core.worker.limits import limit_memory
from sysbench.core.worker.memory.oom_state import OomObserver
from sysbench.core.worker.setup import describe_torch, prepare_torch

Measure = Callable[[Job, Report], bool | None]
"""Runs a pass and reports its block; False if it has no result and has reported the reason."""


def run_pass(job: Job, report: Report, load: Callable[[], Measure]) -> bool:
    """Run a pass in this process; return False if it failed, which is reported.

    Args:
        load: Returns the function that measures. It is called before the memory limit: what it
            imports, or the ranks that it joins, do not count.
    """
    observer = None
    try:
        settings = prepare_torch(job.spec)
        report(DeviceDescribed(facts={**describe_torch(job.spec), "settings": settings}))
        measure = load()
        limit_memory(job.spec)
        observer = OomObserver(job.spec)
        measure(job, report)
    except Exception as error:
        report_failure(error, job.spec, report, observer)
        return False
    return True
