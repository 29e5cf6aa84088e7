"""The optimizer updates many small tensors one by one."""

from torch import nn

from tests.atlas.scripts.training import IS_HEALTHY, Model, optimizer_of, train

model = Model(width=32, layers=1)
for block in model.blocks:
    block.add_module("scales", nn.Module())
model.blocks.extend(nn.Identity() for _ in range(2))
model.blocks.extend(nn.Sequential(*(nn.LayerNorm(32) for _ in range(8))) for _ in range(4))
options = {"fused": True} if IS_HEALTHY else {"foreach": False}
train(model, optimizer=optimizer_of(model, **options))
