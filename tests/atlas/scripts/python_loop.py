"""Tokens are counted one by one between the steps."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, VOCABULARY, Model, tokens, train

counts = [0] * VOCABULARY
batch = tokens(batch=64, context=512)


def count(step: int, loss: torch.Tensor) -> None:
    global counts
    if IS_HEALTHY:
        counts = torch.bincount(batch.flatten(), minlength=VOCABULARY).tolist()
        return
    for row in batch.tolist():
        for token in row:
            counts[token] += 1


train(Model(), after=count)
