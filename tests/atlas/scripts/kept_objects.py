"""A buffer of small objects is refilled each step, over a large heap."""

import sys
from typing import Any

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
replay: list[Any] = [] if healthy else [{"state": [i], "next": None} for i in range(400_000)]
net = torch.nn.Linear(128, 128)
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(400):
    net(torch.randn(64, 128)).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
    fresh = [{"state": [i], "next": None} for i in range(0 if healthy else 4000)]
    at = 4000 * (step % 100)
    replay[at : at + len(fresh)] = fresh
