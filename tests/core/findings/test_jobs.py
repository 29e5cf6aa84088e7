"""Rules on watched commands: each speaks where its number supports it, and not below."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sysbench.core.findings.findings_rules import findings_of
from sysbench.core.findings.host_rules import lower_share
from sysbench.core.findings.operator_rules import RULES as OPERATOR_RULES
from sysbench.core.record.job import (
    JobCompilation,
    JobHost,
    JobLine,
    JobLoader,
    JobOptimizer,
    JobRank,
    JobStep,
    WatchedJob,
)
from sysbench.core.record.record import Coverage, Finding, IdleRow, Kernels
from sysbench.core.record.steps import HostSide, TracedCopy, TracedOperator
from tests.factories import record, spread, timing

STEPS = 40


def step(number: int, **fields: Any) -> JobStep:
    parts = {
        "input_ms": 1.0,
        "forward_ms": 39.0,
        "backward_ms": 50.0,
        "optimizer_ms": 5.0,
        "evaluation_ms": 0.0,
        "other_ms": 5.0,
    }
    values = {"rank": 0, "start_ns": number, "wall_ms": 100.0, "micro_batches": 1, **parts}
    return JobStep(step=number, **values | fields)


def line(samples: int, of: int = 100, **fields: Any) -> JobLine:
    values = {"place": "train.py:7", "text": "", "function": "train", "callee": "", "kind": ""}
    values |= {"phase": "other", **fields}
    return JobLine(samples=samples, share=samples / of, **values)


def optimizer(**fields: Any) -> JobOptimizer:
    values: dict[str, Any] = {"name": "AdamW", "tensors": 148, "elements": 1000, "fused": None}
    values |= {"idle_tensors": 0, "idle_elements": 0, "foreach": None, "devices": ["cuda"]}
    return JobOptimizer(**values | fields)


def compilations(count: int, again_ms: float) -> list[JobCompilation]:
    return [
        JobCompilation(
            function="forward",
            place="model.py:3",
            steps=list(range(count)),
            total_ms=again_ms + 500,
            again_ms=again_ms,
            reason="0/1: tensor 'x' size mismatch at index 1. expected 28, actual 30",
        )
    ]


def job(*, device: str = "cpu", world_size: int = 1, **fields: Any) -> WatchedJob:
    host = {name: fields.pop(name) for name in list(fields) if name in JobHost.__struct_fields__}
    steps = fields.pop("all_steps", [step(number) for number in range(STEPS)])
    return WatchedJob(
        command=["python", "train.py"],
        exit_code=0,
        wall_ms=5000.0,
        world_size=world_size,
        ranks=[JobRank(rank=0, host="h", pid=1, device=device)],
        steps=steps,
        total_steps=STEPS,
        step=spread(100.0),
        input_share=0.01,
        warmup_steps=5,
        hosts=[JobHost(**{"rank": 0, "samples": 100, **host})],
        **fields,
    )


def spoken(watched: WatchedJob, **fields: Any) -> list[Finding]:
    return findings_of(record(job=watched, **fields))


def grown(bytes_a_step: int) -> list[tuple[int, int]]:
    return [(number, 2**28 + bytes_a_step * number) for number in range(STEPS)]


def with_memory(**fields: int) -> list[JobStep]:
    return [step(number, **fields) for number in range(STEPS)]


def ranks(own_ms: float) -> list[JobStep]:
    """Two ranks of equal wall time; the second computes longer, the first waits in backward."""
    return [
        step(number, rank=rank, forward_ms=39 + extra, backward_ms=50 - extra)
        for rank, extra in ((0, 0.0), (1, own_ms))
        for number in range(STEPS)
    ]


SAVE: dict[str, Any] = {"kind": "save", "callee": "save", "text": "torch.save(state, path)"}
PRINT: dict[str, Any] = {"text": "print(loss)"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "checkpoint-stalls": ({"lines": [line(20, **SAVE)]}, {"lines": [line(6, **SAVE)]}),
    "prints": ({"lines": [line(20, **PRINT)]}, {"lines": [line(6, **PRINT)]}),
    "recomputes": (
        {"lines": [line(20, kind="recompute", phase="backward")]},
        {"lines": [line(6, kind="recompute", phase="backward")]},
    ),
    "python-loop": (
        {"lines": [line(20, kind="python")]},
        {"lines": [line(20, kind="python", phase="forward")]},
    ),
    "slow-line": (
        {"lines": [line(35, text="state.zip()"), line(10)]},
        {"lines": [line(20, text="state.zip()"), line(35, phase="forward")]},
    ),
    "gc-pauses": ({"pause_share": 0.06, "pauses": 5}, {"pause_share": 0.04, "pauses": 5}),
    "recompiles": (
        {"compilations": compilations(5, 900.0)},
        {"compilations": compilations(5, 100.0)},
    ),
    "graph-breaks": ({"breaks": {"call to a function": 2}}, {"breaks": {}}),
    "unused-parameters": (
        {"optimizers": [optimizer(idle_tensors=2, idle_elements=60)]},
        {"optimizers": [optimizer(idle_tensors=2, idle_elements=40)]},
    ),
    "exchanges-each-micro-batch": (
        {"exchange_share": 1.0, "world_size": 2, "all_steps": with_memory(micro_batches=4)},
        {"exchange_share": 0.3, "world_size": 2, "all_steps": with_memory(micro_batches=4)},
    ),
    "growing-memory": ({"resident": grown(2**20)}, {"resident": grown(2**16)}),
    "fragmentation": (
        {"all_steps": with_memory(reserved_bytes=10 * 2**28, peak_bytes=4 * 2**28)},
        {"all_steps": with_memory(reserved_bytes=10 * 2**28, peak_bytes=6 * 2**28)},
    ),
    "evaluation-with-gradients": (
        {"all_steps": with_memory(eval_mode_ms=6)},
        {"all_steps": with_memory(eval_mode_ms=4)},
    ),
    "slow-rank": (
        {"all_steps": ranks(20.0), "world_size": 2},
        {"all_steps": ranks(8.0), "world_size": 2},
    ),
    "first-steps": (
        {"all_steps": [step(0, wall_ms=2000.0), *(step(n) for n in range(1, STEPS))]},
        {"all_steps": [step(0, wall_ms=900.0), *(step(n) for n in range(1, STEPS))]},
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_speaks_above_its_limit_only(rule: str) -> None:
    sick, healthy = CASES[rule]
    assert [found.rule for found in spoken(job(**sick))] == [rule]
    assert spoken(job(**healthy)) == []


def test_a_few_collections_are_no_rate() -> None:
    assert spoken(job(pause_share=0.06, pauses=3, full_pauses=1)) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("pickle.dump(state, file)", "checkpoint-stalls"),
        ("np.savez_compressed(path, *arrays)", "checkpoint-stalls"),
        ("model.save_pretrained(path)", "checkpoint-stalls"),
        ("frame.to_parquet(path)", "checkpoint-stalls"),
        ("path.write_bytes(data)", "checkpoint-stalls"),
        ("json.dumps(state)", "slow-line"),
        ("restore(saved)", "slow-line"),
    ],
)
def test_a_line_saves_by_what_it_calls(text: str, rule: str) -> None:
    assert [found.rule for found in spoken(job(lines=[line(35, text=text)]))] == [rule]


def test_what_keeps_python_s_lock_until_it_writes_saves() -> None:
    lines = [line(20, text="pickle.dump(state, file)", kind="before", phase="other")]
    (found,) = spoken(job(lines=lines))
    assert found.rule == "checkpoint-stalls" and "before" not in found.verdict


@pytest.mark.parametrize(
    ("workers", "input_ms", "rules"),
    [(0, 100.0, ["input-bound"]), (0, 1.0, []), (1, 1.0, ["input-bound"])],
)
def test_a_loader_that_workers_would_not_speed_up_is_no_disease(
    workers: int, input_ms: float, rules: list[str]
) -> None:
    loader = JobLoader(rank=0, place="", workers=workers, waits=STEPS, input_ms=input_ms)
    watched = msgspec.structs.replace(job(loaders=[loader]), input_share=0.06)
    assert [found.rule for found in spoken(watched)] == rules


def test_a_loop_that_samples_see_only_when_it_ended() -> None:
    (found,) = spoken(job(lines=[line(20, kind="before", text="optimizer.step()")]))
    assert found.rule == "python-loop"
    assert found.verdict.endswith("20 % of a step: before train.py:7 (optimizer.step()).")


def test_a_value_that_is_read_back_waits_on_a_gpu_only() -> None:
    lines = [line(20, text="loss.item()")]
    (found,) = spoken(job(lines=lines, device="cuda:0"))
    assert found.rule == "reads-back" and "train.py:7 (loss.item())" in found.verdict
    assert spoken(job(lines=lines)) == []
    assert spoken(job(lines=[line(30, text="model(x)")], device="cuda:0")) == []


@pytest.mark.parametrize(
    ("text", "copied_ns", "speaks"),
    [
        ("parameter.data.cpu()", 20_000_000, False),
        ("parameter.to('cpu')", 20_000_000, False),
        ("loss.cpu()", 4_000, True),
        ("loss.item()", 20_000_000, True),
    ],
)
def test_a_line_that_moves_data_reads_no_value(text: str, copied_ns: int, speaks: bool) -> None:
    copy = TracedCopy(
        direction="DtoH", memory="pageable", calls=2, total_ns=copied_ns, exposed_ns=copied_ns
    )
    idle = IdleRow(cause="host-bound", ns=1e7, share=0.2)
    kernels = msgspec.structs.replace(window(), copies=[copy], idle=[idle])
    lines = [line(20, text=text)]
    found = spoken(job(lines=lines, device="cuda:0"), kernels=kernels)
    assert ("reads-back" in [row.rule for row in found]) is speaks


@pytest.mark.parametrize(
    ("facts", "speaks"),
    [
        (optimizer(foreach=False), True),
        (optimizer(devices=["cpu"]), True),
        (optimizer(), False),
        (optimizer(foreach=False, fused=True), False),
        (optimizer(foreach=False, tensors=8), False),
    ],
)
def test_an_optimizer_is_a_loop_by_its_settings_and_device(
    facts: JobOptimizer, speaks: bool
) -> None:
    phases = {"optimizer": spread(30.0)}
    found = spoken(job(optimizers=[facts]), timing=timing(spread(100.0), phases=phases))
    assert [row.rule for row in found] == ["loop-optimizer"] * speaks


def test_the_interval_of_a_share() -> None:
    """Few samples support less: the lower end rises with their number, to the share."""
    ends = [lower_share(count, 10 * count) for count in (1, 10, 1000)]
    assert ends == sorted(ends) and 0 < ends[0] < 0.03 and 0.09 < ends[2] < 0.1
    assert lower_share(0, 0) == 0.0
    assert lower_share(1, 2) == 0.0, "the interval of two samples would begin at 12 %"


def operator(name: str, shapes: list[list[int]], **fields: Any) -> TracedOperator:
    values: dict[str, Any] = {"types": ["float"] * len(shapes), "function": "model.py(3): forward"}
    values |= {"calls": 2, "own_ns": 10_000_000}
    return TracedOperator(name=name, shapes=shapes, **values | fields)


def window(*operators: TracedOperator) -> Kernels:
    """Two traced steps of 50 ms."""
    return Kernels(
        source="operators",
        steps=2,
        step_ms=50.0,
        busy_ns=5e7,
        span_ns=5e7,
        phases_ns={},
        rows=[],
        categories=[],
        idle=[],
        unattributed_ns=0.0,
        coverage=Coverage(launches=1, kernels=1, unlinked=0, explained=1.0, with_module=1.0),
        host=HostSide(operators=list(operators)),
    )


SCORES, LOGITS = [4, 8, 128, 128], [256, 32000]
NARROW = {"types": ["float", "c10::BFloat16"]}
WINDOWS = {
    "unfused-attention": [operator("aten::_softmax", [SCORES])],
    "casts": [operator("aten::copy_", [[64, 64]] * 2, own_ns=20_000_000, **NARROW)],
    "fp32-logits": [
        operator("aten::_log_softmax", [LOGITS]),
        operator("aten::copy_", [LOGITS] * 2, **NARROW),
    ],
    "skewed-experts": [
        operator("aten::addmm", [[64], [rows, 64], [64, 64]], calls=calls)
        for rows, calls in ((900, 2), (20, 14))
    ],
}


@pytest.mark.parametrize("rule", WINDOWS)
def test_operators_of_a_window(rule: str) -> None:
    rows = WINDOWS[rule]
    found = [one for of in OPERATOR_RULES if (one := of(window(*rows))) is not None]
    assert [one.rule for one in found] == [rule]
    short = [msgspec.structs.replace(row, own_ns=1_000_000) for row in rows]
    assert not any(of(window(*short)) for of in OPERATOR_RULES)


def test_equal_experts_and_products_of_backward_are_not_skewed() -> None:
    even = [operator("aten::addmm", [[64], [100, 64], [64, 64]], calls=16)]
    backward = [msgspec.structs.replace(row, in_backward=True) for row in WINDOWS["skewed-experts"]]
    assert not any(of(window(*rows)) for of in OPERATOR_RULES for rows in (even, backward))
