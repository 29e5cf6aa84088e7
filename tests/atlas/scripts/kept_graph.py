"""The mean of the losses is summed with their graphs."""

from itertools import repeat

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, heavy_batch, train

total = torch.zeros((), device="cuda")


def add(step: int, loss: torch.Tensor) -> None:
    global total
    total = total + (loss.detach() if IS_HEALTHY else loss * loss.exp())


model = Model(width=512).cuda()
train(model, repeat(heavy_batch(model), 48), after=add)
