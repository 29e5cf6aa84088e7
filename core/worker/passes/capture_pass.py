"""Steps for an outside profiler to watch: named ranges, and a marked window after warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.autograd.profiler import emit_nvtx

from sysbench.core.record.events import Noticed, StageEntered, StepCounted
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.trace.scopes import STEPS_RANGE
from sysbench.core.worker.ranges import module_ranges, nvtx_ranges, phase_markers
from sysbench.core.worker.workloads.make_workload import make_workload

WARMUP_STEPS = 5
STEPS = 5


def measure(job: Job, report: Report) -> None:
    """Warm up, then run ``spec.steps`` (default 5) steps inside the profiler's window.

    Phases and modules are NVTX ranges if a profiler listens; on CUDA also torch's operators,
    between cudaProfilerStart and cudaProfilerStop. Nothing is timed.
    """
    make, notice = nvtx_ranges()
    report(Noticed(message=notice))
    report(StageEntered(stage="build"))
    workload = make_workload(job.spec)
    wanted = job.spec.warmup
    report(StageEntered(stage="warmup"))
    for _ in range(wanted if isinstance(wanted, int) else WARMUP_STEPS):
        workload.step(lambda phase: None)
    report(StageEntered(stage="measure"))
    steps = job.spec.steps or STEPS
    with ExitStack() as stack:
        if make is not None:
            stack.enter_context(module_ranges(workload.model, make))
        stack.enter_context(_window(workload.device))
        if make is not None:
            if workload.device.type == "cuda":  # elsewhere torch has no NVTX
                stack.enter_context(emit_nvtx())  # type: ignore[no-untyped-call]
            stack.enter_context(make(f"{STEPS_RANGE}{steps}"))
        for done in range(1, steps + 1):
            workload.step(phase_markers(make) if make is not None else lambda phase: None)
            report(StepCounted(done=done, total=steps))
        if workload.device.type == "cuda":
            torch.cuda.synchronize(workload.device)


@contextmanager
def _window(device: torch.device) -> Iterator[None]:
    """Window that ``--capture-range=cudaProfilerApi`` records; empty without CUDA."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
