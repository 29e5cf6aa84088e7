"""Momentum is kept for a hundred small tensors, one by one."""

import sys

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
layers = [torch.nn.Linear(24, 24) for _ in range(60)]
net = torch.nn.Sequential(*layers)
rms: torch.optim.Optimizer
if healthy:
    rms = torch.optim.AdamW(net.parameters(), fused=True)
else:
    rms = torch.optim.RMSprop(net.parameters(), foreach=False, momentum=0.9)
for _ in range(600):
    loss = net(torch.randn(32, 24)).square().mean()
    loss.backward()
    rms.step()
    rms.zero_grad()
