"""Each layer goes to half precision and back."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Block, Model, tokens, train


class Careful(Block):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if IS_HEALTHY:
            return hidden + self.narrow(torch.relu(self.wide(hidden)))
        wide = torch.relu(self.wide(hidden.bfloat16()).float())
        return (hidden.float() + self.narrow(wide.bfloat16()).float()).bfloat16()


model = Model(width=64)
model.blocks = torch.nn.ModuleList(Careful(64) for _ in range(4))
train(model.bfloat16(), (tokens(batch=16, context=64) for _ in range(60)))
