"""Every sentence follows from rows; what is not measured names the command that measures it."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest

from sysbench.core.record.record import KernelRow, Record
from sysbench.core.runs.library import Library
from sysbench.core.runs.related import runs_with_other_steps
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.questions import questions_of

TIME, LONGEST, OTHERS, GEMMS, SOFTMAX = range(5)


def row(name: str, ns: float, category: str, phase: str = "forward", **changes: Any) -> KernelRow:
    made = KernelRow(
        name=name,
        category=category,
        phase=phase,
        module="blocks.*.attention",
        op="",
        calls=4,
        total_ns=ns,
        exclusive_ns=ns,
        mean_ns=ns / 4,
        min_ns=ns / 4,
        max_ns=ns / 4,
        share=0.0,
    )
    changed: KernelRow = msgspec.structs.replace(made, **changes)
    return changed


FORWARD = [
    row("gemm_a", 60e6, "gemm", module="blocks.*.ffn.w1", op="aten::linear", calls=145),
    row("bmm", 10e6, "gemm", op="aten::matmul"),
    row("exp", 15e6, "elementwise", op="aten::exp"),
    row("reduce", 5e6, "reduce", op="aten::sum"),
    row("mul", 9e6, "elementwise", module="blocks.*.ffn", op="aten::mul"),
    row("tiny", 1e6, "copy", module="norm", op="aten::copy_"),
]
BACKWARD = [row("gemm_b", 100e6, "gemm", "backward", calls=288)]
OPTIMIZER = [row("adam", 100e6, "optimizer", "optimizer", module="")]


def record_of(run: RunDirectory, step: str, rows: list[KernelRow]) -> Record:
    """The run's record as if its step had been of that kind, with these rows."""
    record = run.record()
    assert record.kernels is not None
    kernels = msgspec.structs.replace(record.kernels, rows=rows, phases_ns={"forward": 110e6})
    made: Record = msgspec.structs.replace(
        record, kernels=kernels, spec=record.spec | {"step": step}, id=f"run-{step}"
    )
    return made


@pytest.fixture
def train(gpu_run: RunDirectory) -> Record:
    return record_of(gpu_run, "train", [*FORWARD, *BACKWARD, *OPTIMIZER])


@pytest.fixture
def inference(gpu_run: RunDirectory) -> Record:
    return record_of(gpu_run, "inference", FORWARD)


def asked(record: Record, question: int, *others: Record) -> Answer:
    return questions_of(record, others)[question]


def test_forward_on_the_gpu_stands_beside_the_timer_and_the_wall(train: Record) -> None:
    answer = asked(train, TIME)
    assert answer.numbers["forward_ms"] == 3.0
    assert answer.numbers["traced_forward_ms"] == 110.0
    assert (answer.numbers["span_ms"], answer.numbers["wall_ms"]) == (9.0, 10.2)
    for text in ("3.000 ms by CUDA events", "110.0 ms in the trace", "9.000 ms", "10.20 ms"):
        assert text in answer.sentence


def test_without_a_timing_pass_it_says_so(train: Record) -> None:
    bare = msgspec.structs.replace(train, timing=None)
    assert "the timing pass was not run" in asked(bare, TIME).sentence


def test_the_longest_kernel_is_another_with_backward(train: Record) -> None:
    answer = asked(train, LONGEST)
    assert (answer.numbers["name"], answer.numbers["forward_calls"]) == ("gemm_a", 145)
    assert answer.numbers["forward_share"] == pytest.approx(0.6)
    assert (answer.numbers["both_name"], answer.numbers["same"]) == ("gemm_b", "no")
    assert answer.numbers["both_share"] == pytest.approx(0.5)
    assert "it is another, gemm_b: 100.0 ms, 50.0 %, in 288 calls" in answer.sentence
    assert answer.rows == ["gemm_a", "gemm_b"]


def test_inference_alone_names_the_run_that_is_missing(inference: Record) -> None:
    answer = asked(inference, LONGEST)
    assert "were not measured" in answer.sentence
    (command,) = answer.commands
    assert "step=forward+backward" in shlex.split(command)
    assert "timing,trace" in shlex.split(command)


def test_another_run_of_the_spec_answers_it(inference: Record, train: Record) -> None:
    answer = asked(inference, LONGEST, train)
    assert (answer.numbers["both_run"], answer.commands) == ("run-train", [])


def test_what_else_matters_leaves_matrix_multiplication_out(train: Record) -> None:
    answer = asked(train, OTHERS)
    assert answer.rows == ["exp", "mul", "reduce"]
    assert answer.numbers == pytest.approx({"exp": 0.15, "mul": 0.09, "reduce": 0.05})
    assert "1 more together 1.0 %" in answer.sentence


def test_gemm_share_by_kind_of_step(train: Record, inference: Record) -> None:
    answer = asked(train, GEMMS)
    assert answer.numbers["forward+backward"] == pytest.approx(170 / 200)
    assert answer.numbers["train"] == pytest.approx(170 / 300)
    assert "Not measured: inference." in answer.sentence
    assert len(answer.commands) == 1

    answer = asked(train, GEMMS, inference)
    assert answer.numbers["inference"] == pytest.approx(0.7)
    assert answer.numbers["inference run"] == "run-inference"
    assert answer.commands == []
    assert "70.0 % in inference, 85.0 % in forward+backward, 56.7 % in train" in answer.sentence


def test_softmax_against_the_matmuls_in_time_and_flops(train: Record) -> None:
    answer = asked(train, SOFTMAX)
    spec = RunSpec(model="tiny")
    scores = spec.batch * spec.context**2 * spec.layers
    assert answer.numbers["matmul_flops"] == 4 * scores * spec.d_model
    assert answer.numbers["softmax_flops"] == 5 * scores * spec.heads
    assert (answer.numbers["softmax_ms"], answer.numbers["matmul_ms"]) == (20.0, 10.0)
    assert answer.numbers["time_ratio"] == 2
    assert answer.rows == ["exp", "reduce", "bmm"]
    assert "not fused" in answer.sentence


def test_counted_flops_come_before_the_closed_form(gpu_run: RunDirectory) -> None:
    rows = [row("bmm", 10e6, "gemm", op="aten::matmul", flops=77.0), row("softmax", 5e6, "softmax")]
    answer = asked(record_of(gpu_run, "inference", rows), SOFTMAX)
    assert answer.numbers["matmul_flops"] == 77.0
    assert "not fused" not in answer.sentence


def test_generated_softmax_is_found_by_its_operators(gpu_run: RunDirectory) -> None:
    fused = row("triton_per_fused_amax_exp_sub_sum_1", 5e6, "reduce", module="model")
    fused = msgspec.structs.replace(fused, fused=True, ops=["amax", "exp", "sub", "sum"])
    rows = [fused, row("extern", 10e6, "gemm", module="model", op="aten::bmm")]
    assert asked(record_of(gpu_run, "inference", rows), SOFTMAX).numbers["softmax_ms"] == 5.0


def test_fused_attention_is_not_separable(gpu_run: RunDirectory) -> None:
    rows = [row("flash_fwd", 8e6, "attention")]
    answer = asked(record_of(gpu_run, "inference", rows), SOFTMAX)
    assert answer.numbers["fused_ms"] == 8.0
    assert "One fused kernel does softmax and products" in answer.sentence


def test_imported_trace_has_no_answers(train: Record) -> None:
    imported = msgspec.structs.replace(train, spec={}, timing=None)
    assert questions_of(imported) == []
    assert runs_with_other_steps(imported) == []


def test_a_run_without_kernels_has_no_answers(train: Record) -> None:
    assert questions_of(msgspec.structs.replace(train, kernels=None)) == []


def test_a_real_run_answers_every_question(tiny_run: RunDirectory) -> None:
    record = tiny_run.record()
    answers = questions_of(record)
    assert len(answers) == 5
    for answer in answers:
        assert answer.sentence.endswith(".")
    assert answers[LONGEST].numbers["same"] in ("yes", "no")
    assert answers[SOFTMAX].numbers["flops_ratio"] == pytest.approx(5 * 4 / (4 * 128))


def test_the_library_gives_the_newest_runs_that_differ_in_their_step_only(
    train: Record, gpu_run: RunDirectory
) -> None:
    spec = gpu_run.header().spec
    gpu_run.write_record(train)

    def add(step: str, **changes: object) -> str:
        changed = spec.changed(step=step, **changes)
        run = create_run(changed, ["trace"])
        written = msgspec.structs.replace(
            train,
            id=run.id,
            identity=changed.identity,
            spec=msgspec.to_builtins(changed),
            passes=[one for one in train.passes if one.name == "trace"],
        )
        run.write_record(written)
        return run.id

    add("inference", batch=8)
    wanted = {add("inference"), add("forward+backward", seed=3)}
    assert {other.id for other in runs_with_other_steps(train, Library())} == wanted
