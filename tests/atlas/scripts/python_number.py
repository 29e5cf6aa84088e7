"""A compiled loss gets its weight as a number that changes."""

import sys

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
net = torch.nn.Linear(64, 64)
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)


@torch.compile(backend="eager", dynamic=False)
def weighted(values: torch.Tensor, pieces: int) -> torch.Tensor:
    return sum((piece.square().mean() for piece in values.chunk(pieces)), torch.zeros(()))


for step in range(400):
    loss = weighted(net(torch.randn(256, 64)), 4 if healthy else 2 + step % 40)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
