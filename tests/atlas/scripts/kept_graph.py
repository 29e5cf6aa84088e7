"""The losses of a metric are summed with their graphs."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, heavy_batch, loss_of, tokens, train

model = Model(width=512).cuda()
total = torch.zeros((), device="cuda")


def add(step: int, loss: torch.Tensor) -> None:
    global total
    metric = loss_of(model, tokens(8, 128, "cuda"))
    total = total + (metric.detach() if IS_HEALTHY else metric)


train(model, [heavy_batch()] * 48, after=add)
