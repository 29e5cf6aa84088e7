"""The memory pass: every allocation from before the model is built to a steady step's end."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from statistics import median

import msgspec

from sysbench.core.memory.allocations import MAX_OFFSET_US, Notes
from sysbench.core.memory.block import describe_memory
from sysbench.core.memory.oom_snapshot import snapshot_at_oom
from sysbench.core.predict.requests import OWN_STEPS, WARMUP_STEPS
from sysbench.core.record.events import (
    Noticed,
    ResultReported,
    StageEntered,
    StepCounted,
    WorkStepped,
)
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec
from sysbench.core.storage import write_atomically
from sysbench.core.worker.dry_run.reserve import oom_with_dry_run, with_dry_run
from sysbench.core.worker.failures import ran_out_of_memory
from sysbench.core.worker.limits import OOM_RESERVE_BYTES, without_limit
from sysbench.core.worker.memory.cpu_recorder import CpuRecorder
from sysbench.core.worker.memory.cuda_recorder import CudaRecorder
from sysbench.core.worker.memory.readings import Readings
from sysbench.core.worker.memory.tagger import Tagger
from sysbench.core.worker.workloads.held_tensors import HeldTensors
from sysbench.core.worker.workloads.make_workload import MakeWorkload, Workload, make_workload
from sysbench.core.worker.workloads.model_workload import import_own_model, report_own_model
from sysbench.core.worker.workloads.sdpa import report_sdpa_kernel
from sysbench.core.worker.workloads.stepped_workload import EnterPhase, SteppedWorkload


def report_oom_snapshot(
    job: Job, recorder: CudaRecorder | CpuRecorder, notes: Notes, report: Report
) -> None:
    """Write the artifacts of an interrupted recording and report the live allocations.

    Errors here become a notice, so that they do not replace the out-of-memory error.
    """
    report(StageEntered(stage="export"))
    try:
        write_atomically(job.path / "notes.json", msgspec.json.encode(notes))
        recording = recorder.export()
        report(StageEntered(stage="analyse"))
        snapshot = snapshot_at_oom(recording, notes)
    except Exception as error:  # a recording that ran out of memory can be damaged in any way
        report(Noticed(message=f"live allocations unknown: {type(error).__name__}: {error}"))
        return
    report(ResultReported(block="oom", data=msgspec.to_builtins(snapshot)))
    if job.spec.is_own:  # reported before: the dry run executes the user's code again
        snapshot = oom_with_dry_run(snapshot, job.spec)
        report(ResultReported(block="oom", data=msgspec.to_builtins(snapshot)))


HIDDEN_BY_COMPILING = {
    "ledger.autocast weight copies": "casts in compiled code are hidden: counted as activations",
    "modules.activation_bytes": "compiled code has no inner modules; see the enclosing one",
}

OFF = "the allocator's clock was {:+.1f} µs off; timestamps were corrected before matching owners"

STEPS = WARMUP_STEPS + 1
OWN_STEP_SECONDS = 10.0
"""Processor time after which no further step of a user's own begins."""


def measure(job: Job, report: Report, make: MakeWorkload = make_workload) -> None:
    """Record the allocator over build, warm-up and one steady step; report the ledger.

    Writes ``snapshot.pickle`` (CUDA) or ``allocations.json.gz`` (CPU) and ``notes.json``. An
    out-of-memory error propagates after the live allocations have been reported.
    """
    report(StageEntered(stage="build"))
    recorder = CudaRecorder(job) if job.spec.on_cuda else CpuRecorder(job)
    tagger = Tagger()
    try:
        step_ms = _record(job, make, recorder, tagger, report)
    except Exception as error:
        if ran_out_of_memory(error):
            report_oom_snapshot(job, recorder, _complete_notes(tagger, recorder), report)
        raise
    report(StageEntered(stage="export"))
    notes = _complete_notes(tagger, recorder)
    write_atomically(job.path / "notes.json", msgspec.json.encode(notes))
    recording = recorder.export()
    events = len(recording.history)
    report(WorkStepped(what="allocation events", done=events, total=events))
    report(StageEntered(stage="analyse"))
    memory = describe_memory(recording, notes, step_ms=step_ms)
    if memory.clock_offset_us is not None and abs(memory.clock_offset_us) > MAX_OFFSET_US:
        report(Noticed(message=OFF.format(memory.clock_offset_us)))
    if not job.spec.is_own:
        memory = with_dry_run(memory, job.spec)
    if job.spec.compile != "off":
        memory = msgspec.structs.replace(memory, missing=memory.missing | HIDDEN_BY_COMPILING)
    report(ResultReported(block="memory", data=msgspec.to_builtins(memory)))
    if job.spec.is_own:  # reported before: the dry run executes the user's code again
        memory = with_dry_run(memory, job.spec)
        report(ResultReported(block="memory", data=msgspec.to_builtins(memory)))


def _complete_notes(tagger: Tagger, recorder: CudaRecorder | CpuRecorder) -> Notes:
    return msgspec.structs.replace(
        tagger.notes,
        released_ns=recorder.released_ns,
        workspaces=recorder.workspaces,
        soundings=recorder.soundings,
    )


def _record(
    job: Job,
    make: MakeWorkload,
    recorder: CudaRecorder | CpuRecorder,
    tagger: Tagger,
    report: Report,
) -> float:
    """Build, warm up and run the steady step; return its milliseconds."""
    with without_limit(job.spec):
        if not job.spec.on_cuda:
            _rehearse(job.spec, make)
        gc.collect()  # what is freed during the recording would count as the step's
        # Mapped memory counts against the limit; free it so that the report can be written.
        reserve = bytearray(OOM_RESERVE_BYTES)
    workload: SteppedWorkload | None = None
    with recorder:
        try:
            readings = Readings(job.spec, report)
            tagger.enter("build")
            workload = make(job.spec)  # alive until the recording ends
            tagger.enter("")
            recorder.read("after build")
            readings.read(None, "build")
            step_ms = _take_steps(workload, recorder, tagger, readings, report)
        except BaseException:
            del reserve  # no function call before: the CPU recorder would allocate to record it
            if workload is not None:
                tagger.tag_optimizer_state(workload)  # made by the step that did not finish
            raise
    report_own_model(workload, report)
    report_sdpa_kernel(workload, report)
    return step_ms


def _take_steps(
    workload: SteppedWorkload,
    recorder: CudaRecorder | CpuRecorder,
    tagger: Tagger,
    readings: Readings,
    report: Report,
) -> float:
    compiles, steps = workload.spec.compiles, _steps_of(workload)
    held = HeldTensors(workload.model) if workload.spec.is_own else None
    with tagger.watching(workload, held):
        report(StageEntered(stage="compile" if compiles else "warmup"))
        for index in range(WARMUP_STEPS):
            _step(workload, tagger, index, readings.around(index, tagger.enter))
            if held:
                tagger.tag_held(workload, held)
            if index == 0:
                recorder.read("first step", of_peak=True)
                if compiles:
                    report(StageEntered(stage="warmup"))
            report(StepCounted(done=index + 1, total=steps))
        report(StageEntered(stage="measure"))
        recorder.read("after warm-up")
        ends_ns, began = [time.perf_counter_ns()], time.process_time()
        for index in range(WARMUP_STEPS, steps):
            # Without readings: these steps are recorded and timed.
            _step(workload, tagger, index, tagger.enter)
            ends_ns.append(time.perf_counter_ns())
            if time.process_time() - began > OWN_STEP_SECONDS:
                break
        recorder.end_steady_step()
        if held:
            tagger.tag_held(workload, held)
        report(StepCounted(done=steps, total=steps))
    return median(after - before for before, after in pairwise(ends_ns)) / 1e6


def _steps_of(workload: SteppedWorkload) -> int:
    """Number of steps; more of a user's own, which can differ."""
    is_own = isinstance(workload, Workload) and workload.parts.step is not None
    return OWN_STEPS if is_own else STEPS


def _step(workload: SteppedWorkload, tagger: Tagger, index: int, enter: EnterPhase) -> None:
    tagger.begin_step(index)
    workload.step(enter)
    tagger.tag_cache(workload)
    if workload.loss is not None:
        tagger.tag(workload.loss, "outputs")


def _rehearse(spec: RunSpec, make: MakeWorkload) -> None:
    """Run an unrecorded step of a minimal model, so that torch imports what it needs.

    The CPU recorder traces Python calls: imports would take longer than the steps.
    """
    if spec.is_own:
        import_own_model(spec)
        optimizer = "adamw-foreach" if spec.optimizer == "custom" else spec.optimizer
        spec = spec.changed(model="", optimizer=optimizer, batch=1, context=2)
    kernel = spec.attention_row
    smallest = spec.changed(
        **dict.fromkeys(DIMENSION_NAMES, 1) | {"d_model": 2},
        batch=1,
        context=2,
        checkpoint=min(spec.checkpoint, 1),
        attention=kernel.stand_in if kernel.compiles else kernel.name,
        compile="off",
    )
    workload = make(smallest)
    tagger = Tagger()
    with tagger.watching(workload):
        workload.step(tagger.enter)
