"""A file of a user with models of many kinds, right ones and wrong ones."""

from __future__ import annotations

CODE = '''
import sys
from types import SimpleNamespace

import torch
from torch import nn


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x + Scaled.apply(torch.relu(self.inner(x)), self.scale)


def make(layers=2, width=48):
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(50, width), *blocks, nn.Linear(width, 50))


def encoder(width=32, dropout=0.0):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2)
    return nn.Sequential(nn.Embedding(50, width), stack, nn.Linear(width, 50))


def idle(frozen=False, width=48):
    model = make(1, width)
    model.idle = nn.Parameter(torch.zeros(2**21), requires_grad=not frozen)
    return model


def headless(width=32):
    return nn.Sequential(nn.Embedding(50, width), nn.Linear(width, width))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16))
        self.norm, self.pool = nn.LayerNorm(16), nn.AdaptiveAvgPool1d(1)

    def forward(self, patches):
        tokens = patches.flatten(2).transpose(1, 2)
        tokens = self.norm(tokens + self.inner(tokens))
        return self.pool(tokens.transpose(1, 2)).flatten(1)


def pooled():
    patches = nn.Conv2d(3, 16, 4, 4)
    return SimpleNamespace(
        model=nn.Sequential(patches, Pooled()), batch=lambda batch: torch.randn(batch, 3, 32, 32)
    )


def normed():
    convolutions = (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *convolutions, nn.AdaptiveAvgPool2d(1))
    return SimpleNamespace(model=model, batch=lambda batch: torch.randn(batch, 3, 16, 16))


class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum(1, keepdim=True) + x.exp().sum(1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return (2 * x + x.exp()) * gradient


class Summed(nn.Linear):
    def forward(self, x):
        return Added.apply(super().forward(x))


def added():
    return SimpleNamespace(model=Summed(8, 4096), batch=lambda batch: torch.randn(batch, 8))


class Grouped(nn.Module):
    def forward(self, ids):
        q, k = self.table(ids).unsqueeze(1).expand(-1, 4, -1, -1), self.table(ids).unsqueeze(1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        return self.head(mixed.sum(1))

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)


def of_the_default_device(width=16):
    class Positions(nn.Module):
        def forward(self, ids):
            return torch.arange(ids.shape[1]) + torch.zeros(ids.shape[0], 1, dtype=torch.long)

    def loss(model, ids):
        targets = torch.zeros(ids.numel(), dtype=torch.long)
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), targets)

    model = nn.Sequential(Positions(), nn.Embedding(50, width), nn.Linear(width, 50))
    def batch(batch, context):
        return torch.zeros(batch, context, dtype=torch.long)

    return SimpleNamespace(model=model, batch=batch, loss=loss)


def images(side=8):
    def batch(batch):
        return torch.randn(batch, 3, side, side)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    return SimpleNamespace(model=model, batch=batch)


class Trained:
    """Everything a factory may bring but a whole step."""

    def __init__(self, batch):
        self.model = nn.Linear(6, 2)
        self.rows = batch

    def batch(self):
        return {"x": torch.randn(self.rows, 6), "y": torch.randn(self.rows, 2)}

    def loss(self, model, batch):
        return (model(batch["x"]) - batch["y"]).square().mean()

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def stepped():
    model = nn.Linear(4, 4)

    def step(enter):
        enter("first half")
        loss = model(torch.ones(2, 4)).sum()
        enter("second half")
        loss.backward()
        model.zero_grad()

    return SimpleNamespace(model=model, step=step)


def raises():
    sizes = {"a": 1}
    return nn.Linear(sizes["b"], 2)


def exits():
    sys.exit(3)


def pair():
    return nn.Linear(2, 2), 3


def needs_file():
    return open("weights-not-there.bin").read()


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids):
        return self.table(ids) @ torch.zeros(3, 3)


class Ends(Wrong):
    def forward(self, ids):
        raise SystemExit("enough")


def no_table():
    return nn.Linear(4, 4)


def loss_of_two():
    return SimpleNamespace(
        model=nn.Linear(4, 4),
        batch=lambda: torch.ones(2, 4),
        loss=lambda model, batch: model(batch),
    )
'''
