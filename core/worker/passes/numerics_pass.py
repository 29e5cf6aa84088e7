"""The numerics pass: sums in number formats, and dtypes under autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from sysbench.core.record.events import ResultReported, StageEntered
from sysbench.core.record.numerics import Accumulated, Numerics, TensorDtype
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.spec.spec import RunSpec

BATCH, WIDTH, HIDDEN, CLASSES = 4, 8, 10, 5


class ToyWeights(NamedTuple):
    """Two projections without bias around a LayerNorm, in float32."""

    fc1: Tensor
    gain: Tensor
    shift: Tensor
    fc2: Tensor


def toy_weights() -> ToyWeights:
    return ToyWeights(
        fc1=torch.empty(HIDDEN, WIDTH).fill_(0.1),
        gain=torch.ones(HIDDEN),
        shift=torch.zeros(HIDDEN),
        fc2=torch.empty(CLASSES, HIDDEN).fill_(0.1),
    )


def toy_step(weights: ToyWeights) -> dict[str, Tensor]:
    """One forward with loss: fc1, ReLU, LayerNorm, fc2, cross-entropy; tensors by name."""
    x = torch.ones(BATCH, WIDTH)
    targets = torch.zeros(BATCH, dtype=torch.long)
    hidden = F.linear(x, weights.fc1)
    normed = F.layer_norm(F.relu(hidden), (HIDDEN,), weights.gain, weights.shift)
    logits = F.linear(normed, weights.fc2)
    return {
        "fc1 output": hidden,
        "LayerNorm output": normed,
        "logits": logits,
        "loss": F.cross_entropy(logits, targets),
        "logits.sum()": logits.sum(),
        "logits.mean()": logits.mean(),
    }


COUNT, ADDEND = 1000, 0.01
EXACT = 10.0
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Loop(NamedTuple):
    """Dtypes of a sum and its addends; ``converted`` widens each addend first."""

    accumulator: torch.dtype
    addend: torch.dtype
    converted: bool = False

    @property
    def name(self) -> str:
        left, right = NAMES[self.accumulator], NAMES[self.addend]
        return f"{left} += {left}({right})" if self.converted else f"{left} += {right}"


LOOPS = (
    Loop(torch.float32, torch.float32),
    Loop(torch.float16, torch.float16),
    Loop(torch.float32, torch.float16),
    Loop(torch.float32, torch.float16, converted=True),
    Loop(torch.bfloat16, torch.bfloat16),
    Loop(torch.float32, torch.bfloat16),
    Loop(torch.float32, torch.bfloat16, converted=True),
)
"""The handout's four, and the same with bfloat16 for float16."""


def _row(loop: Loop, device: torch.device) -> Accumulated:
    value = _sum(loop, device)
    return Accumulated(
        name=loop.name,
        device=device.type,
        accumulator=NAMES[loop.accumulator],
        addend=NAMES[loop.addend],
        value=value,
        exact=EXACT,
        error=value - EXACT,
    )


def _sum(loop: Loop, device: torch.device) -> float:
    total = torch.zeros((), dtype=loop.accumulator, device=device)
    addend = torch.tensor(ADDEND, dtype=loop.addend, device=device)
    for _ in range(COUNT):
        total += addend.to(loop.accumulator) if loop.converted else addend
    return total.item()


LOWER_DTYPES = (torch.float16, torch.bfloat16)
"""Of the experiment, in the order of its rows."""

Device = Literal["cpu", "cuda"]
Source = Literal["measured", "dispatcher", "autograd"]


def autocast_dtypes(spec: RunSpec) -> Numerics:
    """Dtypes under float16 and bfloat16 autocast of CUDA and of the CPU."""
    rows: list[TensorDtype] = []
    for lower in LOWER_DTYPES:
        if spec.on_cuda:
            rows += _dtypes_of_step(spec.device, "cuda", lower)
        else:
            rows += _dtypes_of_dispatcher(lower)
    for lower in LOWER_DTYPES:
        rows += _dtypes_of_step("cpu", "cpu", lower)
    return Numerics(dtypes=rows)


def _dtypes_of_step(device: str, kind: Device, lower: torch.dtype) -> list[TensorDtype]:
    """Run a real forward and backward step on an available device."""
    with torch.device(device):
        weights = ToyWeights(*(weight.requires_grad_() for weight in toy_weights()))
        with torch.autocast(kind, lower):
            tensors = toy_step(weights)
        torch.autograd.backward(tensors["loss"])
    gradients = {str(weight.grad.dtype) for weight in weights if weight.grad is not None}
    (gradient,) = gradients
    return _rows(kind, lower, weights, tensors, gradient, "measured", "measured")


def _dtypes_of_dispatcher(lower: torch.dtype) -> list[TensorDtype]:
    """Dtypes that torch's dispatcher gives fake CUDA tensors.

    Their dispatch keys are real, so torch's own cast table decides. `torch.autocast` disables
    itself without a device, hence the low-level switches. Without CUDA fake tensors have no
    gradients.
    """
    with FakeTensorMode(), torch.no_grad(), torch.device("cuda"), _cuda_autocast(lower):
        weights = toy_weights()
        tensors = toy_step(weights)
    gradient = str(weights.fc1.dtype)
    return _rows("cuda", lower, weights, tensors, gradient, "dispatcher", "autograd")


@contextmanager
def _cuda_autocast(lower: torch.dtype) -> Iterator[None]:
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", lower)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
        torch.clear_autocast_cache()


def _rows(
    kind: Device,
    lower: torch.dtype,
    weights: ToyWeights,
    tensors: dict[str, Tensor],
    gradient: str,
    source: Source,
    gradient_source: Source,
) -> list[TensorDtype]:
    """Rows of the six tensors of the write-ups and of two disputed reductions."""
    types = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    first = ("fc1 output", "LayerNorm output", "logits", "loss")
    ordered = {"parameters": str(weights.fc1.dtype)} | {name: types.pop(name) for name in first}
    return [
        TensorDtype(
            tensor=name,
            autocast=kind,
            lower=_plain(str(lower)),
            dtype=_plain(dtype),
            source=gradient_source if name == "gradients" else source,
        )
        for name, dtype in (ordered | {"gradients": gradient} | types).items()
    ]


def _plain(dtype: str) -> str:
    return dtype.removeprefix("torch.")


def measure(job: Job, report: Report) -> None:
    """Run the spec's experiment and report the numerics block.

    Raises:
        ValueError: The spec's workload has no such experiment.
    """
    spec = job.spec
    report(StageEntered(stage="measure"))
    if spec.workload == "accumulation":
        device = torch.device(spec.device)
        block = Numerics(accumulations=[_row(loop, device) for loop in LOOPS])
    elif spec.workload == "autocast-dtypes":
        block = autocast_dtypes(spec)
    else:
        raise ValueError(f"workload = {spec.workload} has no numerics")
    report(ResultReported(block="numerics", data=msgspec.to_builtins(block)))
