"""Python collects garbage over a large heap."""

import gc

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, train

corpus = [{"id": number, "parts": [number]} for number in range(200_000)]


def collect(step: int, loss: torch.Tensor) -> None:
    if step % 2 == 0 and not IS_HEALTHY:
        gc.collect()


train(Model(), after=collect)
