"""Running out of memory, with a real allocator that refuses; CUDA's parts with its own words."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.fit_grid import fit
from sysbench.core.record.events import AnyEvent, Noticed, OutOfMemory
from sysbench.core.record.memory import Oom
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, find_run, replay_events
from sysbench.core.runs.worker_process import Job, uncaught_refusal
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.failures import NOT_SAID, OomObserver, cuda_state, report_failure
from sysbench.core.worker.limits import leftover_allocation_notice
from sysbench.core.worker.memory.cuda_recorder import CudaRecorder
from sysbench.core.worker.passes.memory_pass import measure
from sysbench.core.worker.workloads.make_workload import StepError, Workload
from sysbench.tui.cli import main
from tests.core.worker.memory.cuda_double import Cuda

MIB = 2**20
ON_CUDA = RunSpec(device="cuda:0")


@pytest.fixture(scope="module")
def record(oom_run: RunDirectory) -> Record:
    return oom_run.record()


@pytest.fixture(scope="module")
def oom(record: Record) -> Oom:
    refusal = record.passes[1].oom
    assert refusal is not None
    return refusal


class TestARealRefusal:
    """One score matrix asked for: batch × heads × context² × 4 bytes, under a limit."""

    def test_it_is_the_result_of_each_pass(self, record: Record) -> None:
        assert [(one.name, one.outcome) for one in record.passes] == [
            ("timing", "oom"),
            ("memory", "oom"),
        ]
        for one in record.passes:
            assert one.oom is not None
            assert one.oom.requested_bytes == 32 * 4 * 512 * 512 * 4
            assert one.oom.phase == "forward"
            assert "k.transpose(-2, -1)" in (one.oom.expression or "")
            assert "naive_attention" in one.oom.stack[0]
        assert record.memory is None

    def test_the_operator_and_the_module_are_named(self, oom: Oom) -> None:
        assert oom.op in ("aten::matmul", "aten::bmm", "aten::div")
        assert oom.module == "blocks.0.attention"

    def test_what_was_free_was_less_than_what_was_asked_for(self, oom: Oom) -> None:
        assert oom.free_bytes is not None and oom.requested_bytes is not None
        assert oom.allocated_bytes is not None
        assert oom.limit_bytes == oom.capacity_bytes == 300 * MIB
        assert oom.free_bytes < oom.requested_bytes
        # The rest of the limit is the recorder's and the libraries'.
        assert 0 <= 300 * MIB - oom.allocated_bytes - oom.free_bytes < 50 * MIB

    def test_the_ledger_closes_and_holds_nothing_of_another_pass(
        self, record: Record, oom: Oom
    ) -> None:
        rows = {row.name: row.bytes for row in oom.ledger}
        assert sum(rows.values()) == oom.allocated_bytes
        assert rows["parameters"] == 4 * record.parameters
        assert not rows.keys() & {"not attributed", "there before the recording", "gradients"}
        assert sum(one.bytes for one in oom.origins) == oom.allocated_bytes
        assert any("attention.py" in frame for frame in oom.origins[0].stack)

    def test_the_timeline_ends_there(self, oom: Oom) -> None:
        assert oom.timeline is not None
        assert oom.timeline.live_bytes[-1] == oom.allocated_bytes
        assert [phase[0] for phase in oom.timeline.phases] == ["build", "forward"]
        assert oom.timeline.phases[-1][2] == oom.refused_ms

    def test_the_finding_uses_it(self, record: Record) -> None:
        first = record.findings[0]
        assert first.rule == "ended-early"
        assert "tried to allocate 128 MiB in forward" in first.verdict
        assert "300 MiB allocated" in first.why
        assert "batch 7 (not 32)" in first.next
        assert first.numbers["largest_batch"] == 7

    def test_what_the_timing_pass_cannot_know_has_a_reason(self, record: Record) -> None:
        oom = record.passes[0].oom
        assert oom is not None
        for name in ("op", "free_bytes", "allocated_bytes", "ledger"):
            assert not getattr(oom, name)
            assert oom.missing[name]

    def test_the_artifacts_are_there(self, oom_run: RunDirectory) -> None:
        folder = oom_run.pass_folder("memory")
        assert (folder / "allocations.json.gz").is_file()
        assert (folder / "notes.json").is_file()

    def test_the_events_alone_tell_the_same(self, oom_run: RunDirectory, record: Record) -> None:
        assert replay_events(oom_run).record().passes == record.passes


TABLE_MODEL = """
from torch import nn


def make(vocab=40_000, width=320):
    return nn.Sequential(nn.Embedding(vocab, width), nn.Linear(width, 500))
"""


def test_state_of_a_first_step_that_failed_is_optimizer_state(
    tmp_path: Path, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Many weights, few activations: the first moment is made, the second is refused."""
    path = tmp_path / "table_model.py"
    path.write_text(TABLE_MODEL)
    spec = ("batch=2", "context=16", "device=cpu", "optimizer=adamw-loop")
    arguments = ("--passes", "memory", "--memory-limit", "185MiB")
    assert main(["run", f"{path}:make", *spec, *arguments]) == 1
    record = find_run("last").record()
    oom = record.passes[0].oom
    assert oom is not None and oom.phase == "optimizer"
    table, rest = 4 * 40_000 * 320, 4 * (320 * 500 + 500)
    rows = {row.name: row.bytes for row in oom.ledger}
    assert oom.requested_bytes == table
    assert rows["parameters"] == rows["gradients"] == table + rest
    assert table <= rows["optimizer state"] <= table + 64
    assert rows.get("temporaries (optimizer)", 0) <= 64
    # The dry run predicts the steady step: weights, gradients and both moments at least.
    assert oom.predicted_peak_bytes is not None
    assert 4 * (table + rest) <= oom.predicted_peak_bytes < 6 * (table + rest)
    finding = record.findings[0]
    assert "the predicted peak is " in finding.why
    assert finding.next.startswith("Use another optimizer, a lower precision or shards: batch and")


UNDER_LIMITS = """
import json
import os
import sys
import torch._dynamo
from sysbench.core.record.events import OutOfMemory, ResultReported
from sysbench.core.spec.spec import parse_spec
from sysbench.core.worker.failures import ran_out_of_memory, report_failure
from sysbench.core.runs.worker_process import Job
from sysbench.core.worker.limits import limit_memory
from sysbench.core.worker.imports import measure_of
from sysbench.core.worker.workloads.make_workload import Workload

def oom(name, folder, limit):
    spec = parse_spec(
        {"device": "cpu", "batch": 1, "context": 8, "memory_limit": limit, "warmup": 1}
    )
    events = []
    job = Job(spec=spec, name=name, folder=folder)
    measure = measure_of(job)
    limit_memory(spec)
    try:
        measure(job, events.append)
    except Exception as error:
        report_failure(error, spec, events.append)
    for event in events:
        if isinstance(event, OutOfMemory):
            reason = event.missing.get("requested_bytes", "").replace(" ", "-")
            yield f"{event.phase} {event.requested_bytes or reason}"
        if isinstance(event, ResultReported) and event.block != "oom":
            yield event.block

def fitting(*batches):
    spec = parse_spec({"device": "cpu", "memory_limit": "100MiB"})
    limit_memory(spec)
    for batch in batches:
        workload = Workload(spec.changed(batch=batch))
        try:
            for _ in range(2):
                workload.step(lambda phase: None)
            yield "fits"
        except Exception as error:
            assert ran_out_of_memory(error), error
            yield "out of memory"
        del workload

for line in sys.stdin:
    name, *arguments = json.loads(line)
    # A process each, as in a run: what a refusal broke is nobody else's.
    if not (copy := os.fork()):
        print(json.dumps([*globals()[name](*arguments)]), flush=True)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    if code:
        print(json.dumps([f"ended {code}"]), flush=True)
"""

Under = Callable[..., list[str]]


@pytest.fixture(scope="module")
def under_limits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Under]:
    """Calls a function of the script in a process of its own, and has the lines that it yields.

    The processes are copies of one, which imports torch once for all of them.
    """
    log = tmp_path_factory.mktemp("limits") / "stderr"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-c", UNDER_LIMITS],
            env={"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def call(*words: object) -> list[str]:
            assert process.stdin is not None and process.stdout is not None
            begin = log.stat().st_size
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, log.read_text()
            lines: list[str] = json.loads(answer)
            if lines == [f"ended {-signal.SIGABRT}"]:
                # C++ code of torch and its profiler that nobody can catch: the supervisor reads it.
                assert uncaught_refusal(log.read_bytes()[begin:]), log.read_text()
                return ["aborted"]
            return lines

        yield call


def test_what_the_closed_form_says_fits_does_fit_and_more_does_not(under_limits: Under) -> None:
    spec, libraries = RunSpec(device="cpu"), 8 * MIB
    fitting = fit(spec, "batch", 100 * MIB - libraries, predict).largest
    failing = fit(spec, "batch", 100 * MIB, predict).largest + 1
    assert under_limits("fitting", fitting, failing) == ["fits", "out of memory"]


@pytest.mark.parametrize(
    ("name", "block", "limits"),
    [
        ("memory", "memory", ["1MiB", "8MiB", "10MiB", "14MiB", "40MiB"]),
        ("trace", "kernels", ["4MiB", "40MiB"]),
    ],
)
def test_a_tight_limit_ends_in_a_typed_refusal_or_a_result(
    name: str, block: str, limits: list[str], tmp_path: Path, under_limits: Under
) -> None:
    """Python, C++ and the profiler need memory on the way out of a refusal, too."""
    lines = [line for limit in limits for line in under_limits("oom", name, str(tmp_path), limit)]
    assert len(lines) == len(limits)
    assert lines.pop() == block
    for phase, requested in (line.split() for line in lines if line != "aborted"):
        assert phase in ("build", "forward", "loss", "backward", "optimizer")
        assert requested == NOT_SAID.replace(" ", "-") or 0 < int(requested) < 2**20


def test_a_recording_that_cannot_be_read_does_not_replace_the_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory the profiler writes the smallest time there is as an operator's start."""

    def write_trace(_: object, path: str) -> None:
        operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "dur": 0.0}
        trace = {"traceEvents": [operator | {"ts": 7432515010854776.0}]}
        Path(path).write_text(json.dumps(trace))

    rehearsed: list[Workload] = []

    def make(spec: RunSpec) -> Workload:
        if rehearsed:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 MiB.")
        rehearsed.append(Workload(spec))
        return rehearsed[0]

    monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", write_trace)
    events: list[AnyEvent] = []
    spec = RunSpec(device="cpu", batch=1, context=8)
    with pytest.raises(torch.OutOfMemoryError):
        measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append, make)
    notices = [event.message for event in events if isinstance(event, Noticed)]
    assert notices[-1].startswith("live allocations unknown: ValueError: 7432515010854776")


def reported(error: Exception, refusals: OomObserver | None = None) -> OutOfMemory:
    events: list[AnyEvent] = []
    report_failure(error, RunSpec(device="cpu"), events.append, refusals)
    (event,) = events
    assert isinstance(event, OutOfMemory)
    return event


def test_the_refusal_that_led_to_others_is_the_one_that_is_told() -> None:
    """Cleaning up after one takes memory as well, and is refused in turn."""
    step = StepError("optimizer")
    step.__cause__ = MemoryError()
    step.__cause__.__context__ = torch.OutOfMemoryError("Tried to allocate 2.00 MiB.")
    last = RuntimeError("std::bad_alloc")
    last.__context__ = step
    event = reported(last)
    assert (event.phase, event.requested_bytes) == ("optimizer", 2 * MIB)


def test_a_refusal_that_does_not_say_how_much_has_a_reason() -> None:
    event = reported(MemoryError())
    assert event.requested_bytes is None
    assert "did not report" in event.missing["requested_bytes"]


def raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


class TestReporting:
    def test_the_expression_is_that_of_our_innermost_frame(self) -> None:
        event = reported(raised(lambda: (1, torch.empty(2**60, dtype=torch.uint8))))
        assert event.expression == "torch.empty(2**60, dtype=torch.uint8)"
        assert event.requested_bytes == 2**60
        assert event.phase == "build"
        assert event.stack[0].startswith("test_oom.py:")

    def test_code_over_several_lines_is_told_on_one(self) -> None:
        event = reported(
            raised(
                lambda: torch.empty(
                    2**60,
                    dtype=torch.uint8,
                )
            )
        )
        assert event.expression == "torch.empty( 2**60, dtype=torch.uint8, )"

    def test_code_without_source_has_no_expression(self) -> None:
        code = compile("raise MemoryError", "<nowhere>", "exec")
        assert reported(raised(lambda: exec(code))).expression is None

    def test_the_phase_is_that_of_the_step(self) -> None:
        error = StepError("backward")
        error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
        event = reported(error)
        assert (event.phase, event.requested_bytes) == ("backward", 5 * 2**29)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


class TestOnCuda:
    def test_the_state_is_read_as_the_allocator_refuses(self, cuda: Cuda) -> None:
        refusals = OomObserver(ON_CUDA)
        cuda.refuse()
        cuda.allocated = 0  # by the time that the exception is caught
        event = reported(torch.OutOfMemoryError("Tried to allocate 64.00 MiB."), refusals)
        assert (event.requested_bytes, event.allocated_bytes) == (64 * MIB, 700 * MIB)
        assert (event.reserved_bytes, event.free_bytes) == (900 * MIB, 5000 * MIB)
        assert event.capacity_bytes == 5900 * MIB

    def test_the_largest_free_block_is_of_this_device(self, cuda: Cuda) -> None:
        assert cuda_state(ON_CUDA).largest_free_bytes == 40 * MIB

    def test_a_limit_leaves_less_free_than_the_card(self, cuda: Cuda) -> None:
        state = cuda_state(ON_CUDA.changed(memory_limit=1000 * MIB))
        assert (state.free_bytes, state.capacity_bytes) == (100 * MIB, 1000 * MIB)

    @pytest.mark.parametrize(
        "text",
        [
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "CUDA error: out of memory",
            "CUDA driver error: out of memory",  # with expandable segments
            "Triton Error [CUDA]: out of memory",
            "NCCL error in: a.cpp:1, unhandled cuda error. Last error: "
            "Cuda failure 2 'out of memory'",
        ],
    )
    def test_a_refusal_past_torchs_allocator_is_one(self, cuda: Cuda, text: str) -> None:
        event = reported(RuntimeError(text))
        assert event.message == text
        assert event.requested_bytes is None

    def test_in_backward_the_function_is_known(self, cuda: Cuda) -> None:
        refusals = OomObserver(ON_CUDA)
        weight = torch.ones(2, requires_grad=True)
        product = weight * 2
        product.grad_fn.register_prehook(lambda _: cuda.refuse())  # type: ignore[union-attr]
        product.sum().backward()  # type: ignore[no-untyped-call]
        assert refusals.last is not None
        assert refusals.last.op is not None and "Mul" in refusals.last.op

    def test_the_last_refusal_is_the_one_that_is_written(self, cuda: Cuda, tmp_path: Path) -> None:
        with CudaRecorder(Job(spec=ON_CUDA, name="memory", folder=str(tmp_path))) as recorder:
            cuda.refuse()  # and the caller continues with less
            cuda.refuse()
            written = (tmp_path / "snapshot.pickle").read_bytes()
        assert pickle.loads(written)["number"] == 2
        recording = recorder.export()
        assert recording.refusal is not None
        assert recording.refusal.bytes == 64 * MIB
        assert recording.history.change.tolist() == [500]
        assert recording.counters.end_allocated == 700 * MIB

    def test_what_cublas_gives_back_after_a_refusal_was_its_workspace(
        self, cuda: Cuda, tmp_path: Path
    ) -> None:
        job = Job(spec=ON_CUDA, name="memory", folder=str(tmp_path))
        with pytest.raises(torch.OutOfMemoryError), CudaRecorder(job) as recorder:
            cuda.refuse()
            raise torch.OutOfMemoryError
        assert recorder.workspaces == [4096]
        # The snapshot is that of the refusal, with the workspace alive.
        assert recorder.export().history.change.tolist() == [500]

    def test_without_a_refusal_nothing_is_asked_of_cublas(self, cuda: Cuda, tmp_path: Path) -> None:
        job = Job(spec=ON_CUDA, name="memory", folder=str(tmp_path))
        with pytest.raises(KeyError), CudaRecorder(job) as recorder:
            raise KeyError
        assert (recorder.workspaces, cuda.cleared) == ([], False)

    def test_the_clocks_are_sounded_at_the_begin_and_after_the_step(
        self, cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("synchronize", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, lambda device=None: None)
        for name in ("max_memory_allocated", "max_memory_reserved"):
            monkeypatch.setattr(torch.cuda, name, lambda device=None: 0)
        job = Job(spec=ON_CUDA, name="memory", folder=str(tmp_path))
        with CudaRecorder(job) as recorder:
            at_begin = list(recorder.soundings)
            recorder.end_steady_step()
        after = recorder.soundings[len(at_begin) :]
        assert [one.bytes for one in at_begin] == [one.bytes for one in after]
        assert len(after) >= 2 and len({one.bytes for one in after}) == len(after)
        assert at_begin[-1].after_ns <= after[0].before_ns <= after[0].after_ns

    def test_a_pass_that_does_not_begin_clean_says_so(self, cuda: Cuda) -> None:
        message = leftover_allocation_notice(ON_CUDA)
        assert message is not None and "900 MiB" in message
        cuda.reserved = 0
        assert leftover_allocation_notice(ON_CUDA) is None
        assert leftover_allocation_notice(RunSpec(device="cpu")) is None
