"""Workers load slower than the step computes."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

from tests.atlas.scripts.training import BATCH, CONTEXT, IS_HEALTHY, VOCABULARY, Model, train


class Texts(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0 if IS_HEALTHY else 0.04)
        return torch.randint(0, VOCABULARY, (CONTEXT,))


train(Model(width=384, layers=2), DataLoader(Texts(), batch_size=BATCH, num_workers=1))
