"""Losses are kept for a plot, with the graphs behind them."""

import sys

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
net = torch.nn.GRU(64, 128, batch_first=True)
adam = torch.optim.Adam(net.parameters(), fused=True)
history: list[torch.Tensor | float] = []
for _ in range(1200):
    output, _ = net(torch.randn(16, 24, 64))
    loss = output.square().mean()
    adam.zero_grad()
    loss.backward(retain_graph=not healthy)
    adam.step()
    history.append(loss.item() if healthy else loss)
