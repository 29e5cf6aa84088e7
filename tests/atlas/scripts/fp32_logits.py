"""Logits are copied to single precision before the loss."""

from itertools import repeat

import torch
from torch.nn import functional

from tests.atlas.scripts.training import IS_HEALTHY, Model, tokens, train


def loss(model: Model, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch).flatten(0, 1)
    return functional.cross_entropy(logits if IS_HEALTHY else logits.float(), batch.flatten())


model = Model(width=512, layers=6, vocabulary=16384).bfloat16().cuda()
train(model, repeat(tokens(16, 512, "cuda")), loss=loss)  # type: ignore[arg-type]
