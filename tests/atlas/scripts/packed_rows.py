"""Rows are unpacked in the training process; ready, they take a small part of a short step."""

import sys
import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
ready = torch.rand(64)
packed = zlib.compress(np.random.default_rng(0).random(100_000).tobytes())


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2400

    def __getitem__(self, index: int) -> torch.Tensor:
        if healthy:
            return ready
        return torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.float64)[
            :64
        ].float()


net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 1))
adam = torch.optim.Adam(net.parameters(), fused=True)
for batch in DataLoader(Rows(), batch_size=8, shuffle=True):
    adam.zero_grad()
    net(batch).square().mean().backward()
    adam.step()
