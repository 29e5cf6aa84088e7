"""Each layer is checked for values that are not numbers."""

from itertools import repeat

import torch
from torch import nn

from tests.atlas.scripts.training import IS_HEALTHY, Model, heavy_batch, train

bad: list[nn.Module] = []


def check(module: nn.Module, values: object, output: torch.Tensor) -> None:
    if torch.isnan(output).any():
        bad.append(module)


model = Model(width=512, layers=4).cuda()
batch = heavy_batch()
for block in () if IS_HEALTHY else model.blocks:
    block.register_forward_hook(check)
train(model, repeat(batch))
