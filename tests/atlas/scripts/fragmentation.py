"""Buffers of many sizes leave holes in the allocator."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, heavy_batch, train

model = Model(width=512).cuda()
batch = heavy_batch()
kept: list[torch.Tensor] = []


def hold(step: int, loss: torch.Tensor) -> None:
    """Keep features of the last steps; their size follows the number of objects in an image."""
    mebibytes = 400 if IS_HEALTHY else 100 + 25 * step
    kept.append(torch.empty(mebibytes * 2**20, dtype=torch.uint8, device="cuda"))
    del kept[:-2]


train(model, [batch] * 48, after=hold)
