"""Your own model.

``sysbench-tui run examples/nano.py:make model.layers=4 batch=8 context=256`` measures it.
"""

import torch
from torch import nn


class Nano(nn.Module):
    """A small language model; its inputs are token ids of shape (batch, context)."""

    def __init__(self, layers: int, width: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def make(layers: int = 2, width: int = 128, vocab: int = 1000) -> nn.Module:
    """Build the model. Each argument is a setting: ``model.layers=4``."""
    return Nano(layers, width, vocab)
