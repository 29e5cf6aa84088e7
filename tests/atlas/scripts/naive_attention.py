"""Attention writes its scores."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Attention, Model, random_batches, train


class Naive(Attention):
    def mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


model = Model(attention=Attention if IS_HEALTHY else Naive)
train(model, random_batches(context=128))
