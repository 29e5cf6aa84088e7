"""An encoder writes its attention as two einsums and a softmax."""

import sys

import torch
from torch.nn import functional

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(96, 288)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 6, 16)).unbind(2)
        if healthy:
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(4).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


net = torch.nn.Sequential(Encoder(), torch.nn.ReLU(), Encoder())
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
for _ in range(120):
    net(torch.randn(4, 192, 96)).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
