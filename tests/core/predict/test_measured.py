"""The closed form against real steps on the CPU, phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from sysbench.core.predict.closed_form import predict, step_memory
from sysbench.core.spec.spec import RunSpec, StepKind
from sysbench.core.worker.workloads.make_workload import Workload
from tests.drawn import pairwise, some_of

Check = Callable[[RunSpec], None]

WITHIN = 0.005

# Which phase and which moment is the worst differs from size to size.
SIZES: dict[str, dict[str, Any]] = {
    "much vocabulary": {"vocab": 1000, "d_model": 64, "d_ff": 160, "layers": 3, "heads": 4},
    "long context": {"vocab": 50, "d_model": 32, "d_ff": 96, "layers": 4, "heads": 2},
    "wide": {"vocab": 20, "d_model": 128, "d_ff": 512, "layers": 2, "heads": 2},
}
SHAPES = {"much vocabulary": (2, 10), "long context": (3, 96), "wide": (2, 9)}
THIRTY_MILLION: dict[str, Any] = {
    "vocab": 4096,
    "d_model": 512,
    "d_ff": 2048,
    "layers": 6,
    "heads": 8,
}


def make_spec(size: str, **settings: Any) -> RunSpec:
    batch, context = SHAPES[size]
    return RunSpec(**SIZES[size], batch=batch, context=context, device="cpu", **settings)


@pytest.fixture
def check(peaks_of: Callable[..., dict[str, int]]) -> Check:
    """Compares every phase of a spec's step with the prediction."""

    def compare(spec: RunSpec) -> None:
        measured, predicted = peaks_of(Workload(spec)), step_memory(spec).peaks
        assert predicted.keys() == measured.keys() - {"clip", "zero-grad"}
        for phase, moment in predicted.items():
            assert moment.total == pytest.approx(measured[phase], rel=WITHIN), phase
        assert predict(spec).peak_bytes == pytest.approx(max(measured.values()), rel=WITHIN)

    return compare


@pytest.mark.parametrize(
    ("size", "attention", "step"),
    pairwise("float32", list(SIZES), ["naive", "sdpa"], get_args(StepKind)),
)
def test_float32(size: str, attention: str, step: str, check: Check) -> None:
    check(make_spec(size, attention=attention, step=step))


@pytest.mark.parametrize(
    ("size", "precision", "attention", "step"),
    [
        *pairwise(
            "low precision",
            list(SIZES),
            ["bf16", "bf16-pure"],
            ["naive", "sdpa"],
            ["inference", "train"],
        ),
        ("wide", "fp16", "naive", "inference"),
        ("wide", "fp16", "sdpa", "train"),
    ],
)
def test_low_precision(size: str, precision: str, attention: str, step: str, check: Check) -> None:
    spec = make_spec(size, precision=precision, attention=attention, step=step)
    check(spec)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("step", ["inference", "train"])
def test_the_tiny_preset(step: Any, attention: Any, check: Check) -> None:
    spec = RunSpec(model="tiny", device="cpu", step=step, attention=attention)
    check(spec)


@pytest.mark.parametrize(
    ("precision", "attention", "step", "context"),
    some_of(
        "thirty million",
        [
            ("fp32", "naive", "inference", 64),
            ("fp32", "naive", "forward", 64),
            ("fp32", "sdpa", "forward+backward", 64),
            ("fp32", "naive", "train", 64),
            ("bf16", "sdpa", "train", 8),
        ],
        2,
    ),
)
def test_thirty_million_parameters(
    precision: Any, attention: Any, step: Any, context: int, check: Check
) -> None:
    spec = RunSpec(
        **THIRTY_MILLION,
        batch=2,
        context=context,
        device="cpu",
        precision=precision,
        attention=attention,
        step=step,
    )
    assert 29e6 < spec.dimensions.parameters < 31e6
    check(spec)


@pytest.mark.parametrize("optimizer", ["adamw-loop", "adamw-foreach", "adamw-fused", "sgd"])
@pytest.mark.parametrize("size", ["much vocabulary", "wide"])
def test_optimizers(size: str, optimizer: str, check: Check) -> None:
    check(make_spec(size, optimizer=optimizer, clip=1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("step", ["forward", "train"])
def test_written_out_by_torch(step: str, precision: str, check: Check) -> None:
    spec = make_spec("long context", attention="sdpa-math", step=step, precision=precision)
    check(spec)


def saved_bytes(spec: RunSpec) -> int:
    """What autograd saves in one forward with its loss: storages once, no weights, no buffers."""
    workload = Workload(spec)
    held = {
        tensor.untyped_storage().data_ptr()
        for tensor in (*workload.model.parameters(), *workload.model.buffers(), *workload.inputs)
    }
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        workload.step(lambda phase: None)
    return sum(saved.values())


@pytest.mark.parametrize(
    ("size", "precision", "attention"),
    pairwise("saved", list(SIZES), ["fp32", "bf16-pure"], ["naive", "sdpa", "sdpa-math"]),
)
def test_saved_activations_are_what_autograd_saves(
    size: str, precision: str, attention: str
) -> None:
    spec = make_spec(size, precision=precision, attention=attention, step="forward+backward")
    assert predict(spec).saved_activation_bytes == pytest.approx(saved_bytes(spec), rel=WITHIN)


SEGMENTS = {
    "long context, 1": ("long context", 1),
    "long context, 3": ("long context", 3),
    "much vocabulary, 2": ("much vocabulary", 2),
    "wide, 2": ("wide", 2),
}


@pytest.mark.parametrize(
    ("segments", "attention", "precision"),
    pairwise("segments", list(SEGMENTS), ["naive", "sdpa"], ["fp32", "bf16", "bf16-pure"]),
)
def test_recomputed_segments(segments: str, attention: str, precision: str, check: Check) -> None:
    size, checkpoint = SEGMENTS[segments]
    check(make_spec(size, checkpoint=checkpoint, attention=attention, precision=precision))
