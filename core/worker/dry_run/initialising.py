"""What drawing the weights' values requests, without values: torch's truncated normal.

Since 2.12 torch redraws what falls outside of the bounds until nothing does, in tensors as large
as the weight; before, it worked in place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import init

REJECTS = "mask" in init._no_grad_trunc_normal_.__code__.co_varnames
"""Whether this torch redraws."""

OUTSIDE = math.erfc(3 / math.sqrt(2))
"""Share of a normal distribution outside of three deviations: the model's bounds."""


def request_initialisation(module: nn.Module) -> None:
    """Stands for `models.transformer.initialise`."""
    if REJECTS and isinstance(module, (nn.Linear, nn.Embedding)):
        with torch.no_grad():
            _redraw(module.weight, redraws_of(module.weight.numel()))


def redraws_of(count: int) -> int:
    """Redraws until less than half a value is expected outside; all are counted as drawn."""
    redraws = 0
    while count * OUTSIDE**redraws * OUTSIDE >= 0.5:
        redraws += 1
    return redraws


def _redraw(weight: Tensor, redraws: int) -> None:
    # The names and their lifetimes are torch's: they decide what is alive with what.
    result = weight
    for left in range(redraws, -1, -1):
        mask = (result < 0) | (result > 0)
        mask.any()
        if left:
            result = torch.where(mask, torch.empty_like(result), result)
