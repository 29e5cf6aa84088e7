"""The first steps read what later ones find in memory."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

from tests.atlas.scripts.training import BATCH, CONTEXT, IS_HEALTHY, VOCABULARY, Model, train


class Cached(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        key = index % 12
        if key not in self.cache:
            time.sleep(0 if IS_HEALTHY else 1.0)
            self.cache[key] = torch.randint(0, VOCABULARY, (CONTEXT,))
        return self.cache[key]


train(Model(), DataLoader(Cached(), batch_size=BATCH))
