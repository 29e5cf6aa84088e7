"""Every other step writes a checkpoint."""

import tempfile
from pathlib import Path

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, optimizer_of, train

model = Model(width=512)
optimizer = optimizer_of(model)
with tempfile.TemporaryDirectory() as folder:

    def save(step: int, loss: torch.Tensor) -> None:
        if not IS_HEALTHY and step % 2 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / "last.pt")

    train(model, optimizer=optimizer, after=save)
