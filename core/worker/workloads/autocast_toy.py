"""The toy model whose types under autocast the handout asks for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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
