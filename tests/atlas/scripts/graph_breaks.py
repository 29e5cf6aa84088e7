"""The compiled model prints."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, train


class Reporting(Model):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        logits = super().forward(batch)
        if not IS_HEALTHY and logits.mean().item() > 1e9:
            print("large")
        return logits


model = Reporting()
model.compile(backend="eager")
train(model)
