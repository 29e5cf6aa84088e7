"""Each layer goes to double precision and back."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Block, Model, random_batches, train


class Careful(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        del self.attention

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if IS_HEALTHY:
            return hidden + self.narrow(torch.relu(self.wide(hidden)))
        wide = self.wide(hidden)
        for _ in range(3):
            wide = torch.relu(wide.double()).float()
        return (hidden.double() + self.narrow(wide).double()).float()


model = Model(width=64)
model.blocks = torch.nn.ModuleList(Careful(64) for _ in range(4))
train(model, random_batches(16, 64))
