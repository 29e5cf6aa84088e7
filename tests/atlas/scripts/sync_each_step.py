"""Each micro-batch reads its loss back from the GPU."""

from itertools import repeat

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, heavy_batch, train

losses: list[float] = []


def note(step: int, loss: torch.Tensor) -> None:
    if not IS_HEALTHY or step % 100 == 0:
        losses.append(loss.item())


model = Model(width=512, layers=1).cuda()
train(model, repeat(heavy_batch()), after=note, micro_batches=4)
