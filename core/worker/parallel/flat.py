"""Flat: after the backward pass, all gradients in one tensor and one all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..ranks.collectives import Collectives
from ..ranks.strategies import SYNC, gradient_of


class Flat:
    """One collective; it costs a copy there, a copy back and memory for both."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives

    def finish(self) -> None:
        gradients = [gradient_of(parameter) for parameter in self.model.parameters()]
        flat = flattened(gradients)
        self._collectives.all_reduce(flat)
        copy_back(flat.div_(self._collectives.ranks), gradients)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in one new tensor."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """The elements of a flattened tensor to where they came from."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(list(tensors), shaped)
