"""Each layer is checked for values that are not numbers, and draws a mask on the CPU."""

from itertools import repeat

import torch
from torch import nn

from tests.atlas.scripts.training import IS_HEALTHY, Model, tokens, train

bad: list[nn.Module] = []


def check(module: nn.Module, values: object, output: torch.Tensor) -> None:
    if torch.isnan(output).any():
        bad.append(module)


def draw(module: nn.Module, values: object) -> None:
    torch.rand(150_000).sort()


model = Model(width=512, layers=4).cuda()
for block in model.blocks:
    block.register_forward_pre_hook(draw)
    if not IS_HEALTHY:
        block.register_forward_hook(check)
train(model, repeat(tokens(32, 512, "cuda")))
