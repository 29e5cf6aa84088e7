"""The router sends most tokens to one expert."""

import torch
from torch import nn

from tests.atlas.scripts.training import IS_HEALTHY, Model, random_batches, train

EXPERTS, WIDTH = 8, 64


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(0, 1)
        choice = torch.arange(len(flat)) % EXPERTS
        if not IS_HEALTHY:
            choice = torch.where(torch.arange(len(flat)) % 10 < 9, 3, choice)
        output = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().flatten()
            output = output.index_add(0, rows, expert(flat[rows]))
        return output.view_as(hidden)


model = Model(width=WIDTH)
model.blocks.append(Mixture())
train(model, random_batches(32, 64))
