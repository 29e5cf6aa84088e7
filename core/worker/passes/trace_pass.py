"""The trace pass: a few steps under torch.profiler, and the kernel table made of them."""

from __future__ import annotations

import gzip
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from sysbench.core.errors import WorkerFailed
from sysbench.core.record.events import (
    Noticed,
    ResultReported,
    StageEntered,
    StepCounted,
    WorkStepped,
)
from sysbench.core.record.steps import ProductError, RouterLoad
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import write_atomically
from sysbench.core.trace.cost_rows import with_costs, work_from_other_trace
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.lanes import LANES_FILE, encode_lanes, lanes_of
from sysbench.core.trace.provenance import GeneratedGraph, with_provenance
from sysbench.core.trace.scopes import STEPS_RANGE
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from sysbench.core.worker.boot import is_simulated
from sysbench.core.worker.compile.apply import compiled_modules
from sysbench.core.worker.compile.graphs import made_kernels, part_ranges, watched_graphs
from sysbench.core.worker.failures import ran_out_of_memory
from sysbench.core.worker.limits import lift_memory_limit
from sysbench.core.worker.ranges import (
    module_ranges,
    phase_markers,
    router_loads,
    watched_routers,
)
from sysbench.core.worker.workloads.low_precision import product_errors
from sysbench.core.worker.workloads.make_workload import (
    MakeWorkload,
    StepError,
    Workload,
    make_workload,
)
from sysbench.core.worker.workloads.model_workload import report_own_model
from sysbench.core.worker.workloads.sdpa import report_sdpa_kernel
from sysbench.core.worker.workloads.stepped_workload import SteppedWorkload

WARMUP_STEPS = 3
TRACED_STEPS = 3
LONG_SECONDS = 2.0
"""Trace fewer steps if three would take longer."""
COPY_BYTES = 8 * 2**20


def measure(job: Job, report: Report, make: MakeWorkload = make_workload) -> None:
    """Trace a few warm steps, write the trace, the timeline and ``kernels.json``, report the table.

    ``kernels.json`` has one row per layer; the reported block folds layers.
    """
    report(StageEntered(stage="build"))
    workload = make(job.spec)
    raw, shaped = job.path / "trace.json", job.path / "shapes.json"
    root = compiled_modules(job.spec, workload.bare_model)[0]
    with (
        watched_graphs(job.spec, root) as graphs,
        module_ranges(workload.bare_model, record_function),
    ):
        _record(workload, graphs, report, raw)
        with part_ranges(graphs, record_function):
            routers = _record_shapes(workload, shaped)
        errors = _product_errors(workload, report)
    report_own_model(workload, report)
    report_sdpa_kernel(workload, report)
    report(StageEntered(stage="export"))
    _compress(raw, job.path / "trace.json.gz", report)
    report(StageEntered(stage="analyse"))
    report_table(job, raw, shaped, graphs, report, routers=routers, product_errors=errors)


def report_table(
    job: Job,
    raw: Path,
    shaped: Path,
    graphs: Sequence[GeneratedGraph],
    report: Report,
    **of_layers: Sequence[RouterLoad | ProductError],
) -> None:
    """Build the kernel table of a trace, write ``kernels.json`` and the timeline, report the block.

    Args:
        raw: Traced steps; deleted after reading.
        shaped: Another step with input shapes; deleted too.
        of_layers: Further fields of the block.
    """
    trace = read_trace(
        raw, lambda done, size: report(WorkStepped(what="decode", done=done, total=size))
    )
    raw.unlink()
    events = len(trace.host.name) + len(trace.device.name)
    report(WorkStepped(what="trace events", done=events, total=events))
    ledger = time_ledger(trace)
    write_atomically(job.path / LANES_FILE, encode_lanes(lanes_of(trace, ledger)))
    item_bytes = job.spec.precision_row.weight_bytes  # the optimizer's tensor lists
    costs = work_from_other_trace(trace, ledger, read_trace(shaped), item_bytes)
    shaped.unlink()
    made = made_kernels(graphs, job)
    on_device = job.spec.on_cuda
    by_layer = kernel_rows(ledger, by_layer=True, on_device=on_device)
    detailed = with_provenance(with_costs(by_layer, costs), made)
    write_atomically(job.path / "kernels.json", msgspec.json.encode(detailed))
    folded = kernel_rows(ledger, on_device=on_device)
    if folded.lacks_kernels:
        report(Noticed(message=folded.missing["kernels"]))
    table = with_provenance(with_costs(folded, costs), made)
    table = msgspec.structs.replace(table, **of_layers)
    report(ResultReported(block="kernels", data=msgspec.to_builtins(table)))


def _record(
    workload: SteppedWorkload, graphs: list[GeneratedGraph], report: Report, path: Path
) -> None:
    enter = phase_markers(record_function)
    spec = workload.spec
    report(StageEntered(stage="compile" if spec.compiles else "warmup"))
    warmup = WARMUP_STEPS if spec.warmup == "auto" else spec.warmup
    seconds = 0.0
    for _ in range(warmup):
        began = time.perf_counter()
        workload.step(enter)
        _synchronise(spec)
        seconds = time.perf_counter() - began
    steps = TRACED_STEPS
    if spec.ranks == 1:  # several ranks run the same steps, however long they are on each
        steps = max(1, min(steps, int(LONG_SECONDS / max(seconds, 1e-9))))
    report(StageEntered(stage="measure"))
    activities = [ProfilerActivity.CPU]
    if spec.on_cuda:
        activities.append(ProfilerActivity.CUDA)
    # One profiler step for all traced steps: the range of a second one would cut ours in two.
    plan = schedule(wait=0, warmup=1, active=1)
    with (
        part_ranges(graphs, record_function),
        profile(activities=activities, schedule=plan) as profiler,
    ):
        workload.step(enter)
        _synchronise(spec)
        profiler.step()
        with record_function(f"{STEPS_RANGE}{steps}"):
            for done in range(steps):
                workload.step(enter)
                report(StepCounted(done=done + 1, total=steps))
            _synchronise(spec)
        lift_memory_limit()  # the profiler needs memory to sort its events
    _export(profiler, path)


def _record_shapes(workload: SteppedWorkload, path: Path) -> list[RouterLoad]:
    """Run one more step, traced on the host only, with input shapes; return what routers chose.

    Shapes cost 0.3 µs per operator, up to a tenth of a small model's step.
    """
    with (
        watched_routers(workload.bare_model) as choices,
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as shapes,
    ):
        workload.step(phase_markers(record_function))
        _synchronise(workload.spec)
    _export(shapes, path)
    return router_loads(choices)


def _product_errors(workload: SteppedWorkload, report: Report) -> list[ProductError]:
    """Run a further step with other products beside those of converted layers, where a kernel
    computes."""
    is_converted = isinstance(workload, Workload) and bool(workload.linear_layers)
    if not is_converted or is_simulated(torch.cuda.get_device_name(workload.device)):
        return []
    try:
        return product_errors(
            workload.model,
            lambda: workload.step(lambda phase: None),
            has_backward=workload.spec.has_backward,
        )
    except StepError as error:
        if not ran_out_of_memory(error):
            raise
        report(Noticed(message="no memory is left for products beside those of converted layers"))
        return []


def _export(profiler: profile, path: Path) -> None:
    profiler.export_chrome_trace(str(path))
    if path.exists():
        return
    with path.with_name(f"{path.name}.tmp").open("ab") as file:
        file.write(bytes(COPY_BYTES))  # repeats the error, for example of a full disk
    raise WorkerFailed("the profiler wrote no trace; the pass's log has its message")


def _synchronise(spec: RunSpec) -> None:
    if spec.on_cuda:
        torch.cuda.synchronize()


def _compress(source: Path, target: Path, report: Report) -> None:
    size = source.stat().st_size
    with source.open("rb") as plain, gzip.open(target, "wb", compresslevel=1) as packed:
        while piece := plain.read(COPY_BYTES):
            packed.write(piece)
            report(WorkStepped(what="compress", done=plain.tell(), total=size))
