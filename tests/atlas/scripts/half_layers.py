"""Activations are stored in half precision between layers."""

import sys

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))
sgd = torch.optim.SGD(layers.parameters(), lr=1e-3)
for _ in range(400):
    x = torch.randn(512, 64)
    for layer in layers:
        x = torch.relu(layer(x))
        if not healthy:
            x = x.half().float().bfloat16().float()
    x.square().mean().backward()
    sgd.step()
    sgd.zero_grad()
