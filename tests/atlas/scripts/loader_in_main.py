"""The loader decodes its samples in the training process."""

import torch
from torch.utils.data import DataLoader, Dataset

from tests.atlas.scripts.training import BATCH, CONTEXT, IS_HEALTHY, VOCABULARY, Model, train


class Words(Dataset[torch.Tensor]):
    """Texts that are split when they are read, or before."""

    def __init__(self) -> None:
        self.text = "sphinx of black quartz judge my vow " * 800
        self.ready = [self.split() for _ in range(8)] if IS_HEALTHY else []

    def split(self) -> torch.Tensor:
        words = [hash(word) % VOCABULARY for word in self.text.split()]
        return torch.tensor(words[:CONTEXT])

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.ready[index % 8] if self.ready else self.split()


train(Model(width=128), DataLoader(Words(), batch_size=BATCH))
