"""A small model and its loop, which the scripts of the atlas share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

IS_HEALTHY = "--healthy" in sys.argv
STEPS, SECONDS = 60, 4.0
VOCABULARY, WIDTH, CONTEXT, BATCH = 256, 64, 32, 4
torch.set_num_threads(1)
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shape = (*hidden.shape[:2], 3, self.heads, -1)
        query, key, value = self.project(hidden).view(shape).permute(2, 0, 3, 1, 4)
        return self.out(self.mix(query, key, value).transpose(1, 2).flatten(2))

    def mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Block(nn.Module):
    def __init__(self, width: int, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.attention = attention(width, 4)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(hidden)
        return hidden + self.narrow(torch.relu(self.wide(hidden)))


class Model(nn.Module):
    def __init__(
        self,
        width: int = WIDTH,
        layers: int = 1,
        vocabulary: int = VOCABULARY,
        attention: type[Attention] = Attention,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, attention) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def tokens(
    batch: int = BATCH, context: int = CONTEXT, device: str = "cpu", vocabulary: int = VOCABULARY
) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, context), device=device)


def loss_of(model: Callable[[Any], torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def optimizer_of(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    options = options or {"fused": True}
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


def heavy_batch() -> torch.Tensor:
    """Return a batch whose step takes a null GPU longer than launching takes the CPU."""
    return tokens(96, 512, "cuda")


def random_batches(batch: int = BATCH, context: int = CONTEXT) -> Iterator[torch.Tensor]:
    while True:
        yield tokens(batch, context)


def train(
    model: nn.Module,
    batches: Iterable[torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[int, torch.Tensor], object] = lambda step, loss: None,
    loss: Callable[[Callable[[Any], torch.Tensor], torch.Tensor], torch.Tensor] = loss_of,
    micro_batches: int = 1,
    seconds: float = SECONDS,
) -> None:
    """Train until both steps and seconds have passed, or the batches end.

    ``after`` is called with each step's number and loss before its optimizer steps. Ranks take
    all batches: a clock of their own would leave them with different numbers of steps.
    """
    optimizer = optimizer or optimizer_of(model)
    began = time.perf_counter()
    for step, batch in enumerate(random_batches() if batches is None else batches):
        if (
            step >= STEPS
            and time.perf_counter() > began + seconds
            and not distributed.is_initialized()
        ):
            break
        value = loss(model, batch)
        value.backward()
        after(step, value)
        if (step + 1) % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
