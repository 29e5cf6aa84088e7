"""The types of a toy model's tensors under autocast, for CUDA also where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..record.numerics import Numerics, TensorDtype
from ..spec.spec import RunSpec
from .workloads.base import AUTOCAST_DTYPES
from .workloads.models.autocast_toy import ToyWeights, toy_step, toy_weights

Device = Literal["cpu", "cuda"]
Source = Literal["measured", "dispatcher", "autograd"]


def autocast_dtypes(spec: RunSpec) -> Numerics:
    """Under float16 and bfloat16, by CUDA's autocast and by the CPU's."""
    rows: list[TensorDtype] = []
    for lower in (AUTOCAST_DTYPES["fp16"], AUTOCAST_DTYPES["bf16"]):
        rows += _measured(spec.device, "cuda", lower) if spec.on_cuda else _dispatched(lower)
    for lower in (AUTOCAST_DTYPES["fp16"], AUTOCAST_DTYPES["bf16"]):
        rows += _measured("cpu", "cpu", lower)
    return Numerics(dtypes=rows)


def _measured(device: str, kind: Device, lower: torch.dtype) -> list[TensorDtype]:
    """A real step, forward and backward, on a device that is here."""
    with torch.device(device):
        weights = ToyWeights(*(weight.requires_grad_() for weight in toy_weights()))
        with torch.autocast(kind, lower):
            tensors = toy_step(weights)
        torch.autograd.backward(tensors["loss"])
    gradients = {str(weight.grad.dtype) for weight in weights if weight.grad is not None}
    (gradient,) = gradients
    return _rows(kind, lower, weights, tensors, gradient, "measured", "measured")


def _dispatched(lower: torch.dtype) -> list[TensorDtype]:
    """What torch's dispatcher makes of CUDA tensors that hold no data.

    A fake CUDA tensor has the keys of a real one, so that torch's own table of casts is asked
    and not a copy of it. `torch.autocast` would switch itself off without a device, hence the
    switches beneath it. Without CUDA a fake tensor cannot have a gradient.
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
    """The write-ups' six, and the two reductions that make them disagree."""
    types = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    asked = ("fc1 output", "LayerNorm output", "logits", "loss")
    ordered = {"parameters": str(weights.fc1.dtype)} | {name: types.pop(name) for name in asked}
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
