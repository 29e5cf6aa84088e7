"""Dry runs of steps: against real steps, the closed form, and more layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.closed_form import ROWS, predict, step_memory
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    DryRun,
    ExactPrediction,
    Moment,
    TrainingVariant,
    extended,
)
from sysbench.core.predict.sizes import workspaces_bytes
from sysbench.core.spec.models import model_presets
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.device import math_attention
from sysbench.core.worker.dry_run.dry_step import dry_run
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.dry_run.vary import Division, Transfer
from sysbench.core.worker.workloads.make_workload import Workload, phases_of

SMALL: dict[str, Any] = {"vocab": 1000, "d_model": 64, "d_ff": 160, "layers": 3, "heads": 4}
LONG: dict[str, Any] = {"vocab": 50, "d_model": 32, "d_ff": 96, "layers": 4, "heads": 2}
SCALARS = 64
"""Bytes of numbers that operations wrap in tensors of their own for an instant."""


def phase_peaks(prediction: ExactPrediction) -> dict[str, int]:
    return {phase.phase: phase.peak_bytes for phase in prediction.phases}


@pytest.mark.parametrize(
    ("precision", "attention", "step"),
    [
        *(("fp32", "naive", "forward"), ("fp32", "sdpa", "forward+backward")),
        *(("fp32", "sdpa-math", "inference"), ("bf16", "naive", "train")),
        *(("fp16", "sdpa", "inference"), ("bf16-pure", "sdpa-math", "inference")),
    ],
)
def test_every_phase_peaks_at_what_a_real_step_allocates(
    precision: Any, attention: Any, step: Any, peaks_of: Callable[..., dict[str, int]]
) -> None:
    spec = RunSpec(
        **LONG,
        batch=3,
        context=96,
        device="cpu",
        precision=precision,
        attention=attention,
        step=step,
    )
    measured = peaks_of(Workload(spec))
    for phase, peak in phase_peaks(exact_prediction(spec)).items():
        # The CPU's kernels of 16-bit products take scratch space of their own.
        within = SCALARS if precision == "fp32" else 0.002 * measured[phase]
        assert peak == pytest.approx(measured[phase], abs=within), phase


@pytest.mark.parametrize("optimizer", ["adamw-loop", "adamw-foreach", "adamw-fused", "sgd"])
def test_every_optimizer_peaks_at_what_it_allocates(
    optimizer: Any, peaks_of: Callable[..., dict[str, int]]
) -> None:
    spec = RunSpec(**SMALL, batch=2, context=10, device="cpu", optimizer=optimizer, clip=1)
    measured = peaks_of(Workload(spec))
    predicted = phase_peaks(exact_prediction(spec))
    assert list(predicted) == [phase for phase in phases_of(spec) if phase != "zero-grad"]
    for phase, peak in predicted.items():
        assert peak == pytest.approx(measured[phase], rel=0.005), phase


class MathAttentions(TorchFunctionMode):
    """Says when attention runs, which may add a mask under the tracker as it does without it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is scaled_dot_product_attention:
            return math_attention(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class RealWorkload(Workload):
    """Takes the place of the dry run's workload; its optimizer has its state."""

    @contextmanager
    def _casting(self) -> Iterator[None]:
        with super()._casting(), MathAttentions():
            yield

    def __init__(self, spec: RunSpec, variant: TrainingVariant) -> None:
        assert variant == PLAIN
        super().__init__(spec)
        self.requested_spec, self.variant = spec, variant
        self.unlike = set[str]()
        self.division = Division(self.model, Transfer())
        self.step(lambda phase: None)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp32", "attention": "naive", "optimizer": "adamw-loop"},
        {"precision": "bf16", "attention": "sdpa", "optimizer": "adamw-foreach"},
        {"precision": "bf16", "attention": "naive", "optimizer": "adamw-fused"},
        {"precision": "bf16", "attention": "sdpa-math", "step": "forward+backward"},
        {"precision": "bf16", "attention": "sdpa", "step": "inference"},
        {"precision": "fp16", "attention": "naive", "step": "inference"},
        {"precision": "bf16-pure", "attention": "sdpa", "optimizer": "sgd"},
    ],
    ids=lambda settings: " ".join(settings.values()),
)
def test_every_moment_is_the_moment_of_a_step_on_real_tensors(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(**SMALL, batch=2, context=10, device="cpu", **settings)
    fake = dry_run(spec)
    monkeypatch.setattr("sysbench.core.worker.dry_run.dry_step.DryRunWorkload", RealWorkload)
    real = dry_run(spec)
    assert fake.moments == real.moments
    assert (fake.saved_bytes, fake.moved_bytes) == (real.saved_bytes, real.moved_bytes)
    assert fake.products == real.products


@pytest.mark.parametrize(
    ("size", "context", "settings"),
    [
        (LONG, 96, {"device": "cpu", "precision": "bf16", "optimizer": "adamw-loop"}),
        (SMALL, 10, {"device": "cuda:0", "precision": "bf16", "clip": 1, "attention": "sdpa"}),
        (SMALL, 10, {"device": "cuda:0", "attention": "sdpa-math", "step": "forward+backward"}),
        (LONG, 96, {"device": "cuda:0", "precision": "bf16-pure", "step": "inference"}),
    ],
)
def test_three_and_four_layers_give_all_of_five(
    size: dict[str, Any], context: int, settings: dict[str, Any]
) -> None:
    spec = RunSpec(**size | {"layers": 5}, batch=2, context=context, **settings)
    whole = dry_run(spec)
    small, large = (dry_run(spec.changed(layers=layers)) for layers in (3, 4))
    deeper = extended(small, large, layers=5)
    assert worst_moments(deeper) == worst_moments(whole)
    assert deeper.saved_bytes == whole.saved_bytes
    assert deeper.products == whole.products
    assert deeper.moved_bytes == whole.moved_bytes


def worst_moments(run: DryRun) -> dict[str, tuple[int, int]]:
    """Phase to its peak as requested and as blocks."""
    phases = {moment.phase for moment in run.moments}
    return {phase: (worst(run, phase, 0), worst(run, phase, 1)) for phase in phases}


def worst(run: DryRun, phase: str, column: int) -> int:
    moments = [moment for moment in run.moments if moment.phase == phase]
    return max(sum((moment.requested, moment.rounded)[column]) for moment in moments)


def test_blocks_that_differ_cannot_be_extended() -> None:
    def run(layers: int, names: str) -> DryRun:
        return DryRun(
            layers=layers,
            moments=[Moment("forward", 0, name, (1,), (512,)) for name in names],
            saved_bytes=0,
            products=Counter(),
            moved_bytes=Counter(),
        )

    with pytest.raises(WorkerFailed, match="blocks"):
        extended(run(3, "ab"), run(4, "ac"), 9)


COMBINATIONS: list[dict[str, Any]] = [
    {"model": "tiny", "precision": "fp32", "attention": "sdpa-math", "step": "inference"},
    {"model": "cs336-2025/small", "precision": "bf16", "attention": "naive", "step": "train"},
    {"model": "cs336-2025/medium", "precision": "fp16", "attention": "sdpa", "step": "inference"},
    {"model": "cs336-2025/large", "precision": "bf16-pure", "attention": "sdpa-cudnn"},
    {"model": "cs336-2025/xl", "precision": "tf32", "attention": "sdpa-efficient"},
    {"model": "cs336-2025/2.7B", "precision": "bf16", "attention": "sdpa-flash"},
    {"model": "cs336-2025/2.7B", "precision": "fp32", "attention": "naive", "step": "forward"},
    {"model": "cs336-2026/10B", "precision": "bf16", "attention": "naive", "context": 1024},
]


@pytest.mark.parametrize("settings", COMBINATIONS, ids=lambda settings: settings["model"])
def test_closed_form_and_exact_mode_agree_on_cuda(settings: dict[str, Any]) -> None:
    spec = RunSpec(device="cuda:0", **{"context": 512, "optimizer": "adamw-fused", **settings})
    exact, closed = exact_prediction(spec), predict(spec)
    assert exact.peak_bytes == pytest.approx(closed.peak_bytes, rel=0.002)
    assert exact.peak_phase == closed.peak_phase
    assert exact.saved_activation_bytes == pytest.approx(closed.saved_activation_bytes, rel=0.002)
    for phase, moment in step_memory(spec).peaks.items():
        whole = moment.total + workspaces_bytes(spec)
        assert phase_peaks(exact)[phase] == pytest.approx(whole, rel=0.002), phase
    assert exact.parameters == closed.parameters
    assert exact.forward_flops == closed.forward_flops
    if spec.attention == "naive":
        assert exact.backward_flops == closed.backward_flops
    else:  # fused attention computes its scores again in backward
        assert closed.backward_flops <= exact.backward_flops < 1.1 * closed.backward_flops + 1


def test_the_presets_are_all_compared() -> None:
    shapes = {model_presets()[settings["model"]].dimensions for settings in COMBINATIONS}
    assert shapes == {preset.dimensions for preset in model_presets().values()}


def test_the_ledger_has_the_rows_of_the_closed_form_and_adds_up() -> None:
    spec = RunSpec(model="cs336-2025/small", precision="bf16", device="cuda:0", context=512)
    exact, closed = exact_prediction(spec), predict(spec)
    rows = {row.name: row.bytes for row in exact.ledger}
    assert [name for name in ROWS if name in rows] == list(rows)
    assert sum(rows.values()) == exact.peak_bytes
    for row in closed.ledger:
        assert rows[row.name] == pytest.approx(row.bytes, abs=0.002 * closed.peak_bytes), row.name
    for phase in exact.phases:
        assert sum(row.bytes for row in phase.ledger) == phase.peak_bytes
        assert sum(one.flops * one.count for one in phase.products) == phase.flops


def test_blocks_of_the_allocator_hold_at_least_what_was_requested() -> None:
    spec = RunSpec(**SMALL, batch=2, context=10, device="cuda:0")
    exact = exact_prediction(spec)
    assert exact.block_ledger is not None
    requested = {row.name: row.bytes for row in exact.ledger}
    for row in exact.block_ledger:
        assert row.bytes % 512 == 0
        assert row.bytes >= requested[row.name]
    assert all(phase.block_bytes >= phase.peak_bytes for phase in exact.phases if phase.block_bytes)
    assert exact_prediction(spec.changed(device="cpu")).block_ledger is None
