"""Twenty small architectures, as a user's file has them: ``architectures.py:NAME``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16
VOCABULARY = 50


class Tokens:
    """A model of token ids; the loss is the mean square of what it returns."""

    def __init__(self, body: nn.Module, batch: int, context: int) -> None:
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), body)
        self.shape: tuple[int, ...] = (batch, context)

    def batch(self) -> Tensor:
        return torch.randint(0, VOCABULARY, self.shape)

    def loss(self, model: nn.Module, ids: Tensor) -> Tensor:
        loss: Tensor = model(ids).float().square().mean()
        return loss


class Pictures(Tokens):
    """A model of pictures with 3 channels and ``context`` by ``context`` pixels."""

    def __init__(self, body: nn.Module, batch: int, context: int, sizes: int = 2) -> None:
        super().__init__(body, batch, context)
        self.model, self.shape = nn.Sequential(body), (batch, 3, *[context] * sizes)

    def batch(self) -> Tensor:
        return torch.rand(self.shape)


class Attention(nn.Module):
    def __init__(self, heads: int = 4, key_heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.key_heads, self.causal = heads, key_heads, causal
        size = WIDTH // heads
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, key_heads * size) for _ in "kv")
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            layer(memory).unflatten(-1, (self.key_heads, -1)).transpose(1, 2)
            for layer in (self.k, self.v)
        )
        repeats = self.heads // self.key_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        result: Tensor = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return result


class Experts(nn.Module):
    """Four experts, each with its share of the rows."""

    def __init__(self, grouped: bool) -> None:
        super().__init__()
        self.grouped = grouped
        self.up = nn.Parameter(torch.randn(4, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(torch.randn(4, 2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        if self.grouped:
            # Of different sizes: one row fewer in the first group, one more in the last.
            ends = torch.arange(1, 5, device=x.device, dtype=torch.int32) * (len(rows) // 4)
            ends = ends - torch.tensor([1, 1, 1, 0], device=x.device, dtype=torch.int32)
            rows = rows.bfloat16()
            hidden = F.grouped_mm(rows, self.up.bfloat16(), offs=ends)
            return F.grouped_mm(F.relu(hidden), self.down.bfloat16(), offs=ends)
        parts = rows.chunk(4)
        return torch.cat([F.relu(parts[i] @ self.up[i]) @ self.down[i] for i in range(len(parts))])


class StateSpace(nn.Module):
    """A depthwise convolution along time, and a recurrence with products."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH, padding=3)
        self.gates = nn.Linear(WIDTH, 8)
        self.decay = nn.Parameter(torch.rand(WIDTH, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        gates, state, results = self.gates(x), 0.0, []
        for step in range(x.shape[1]):
            state = state * self.decay + x[:, step, :, None] * gates[:, step, None]
            results.append((state @ gates[:, step, :, None])[..., 0])
        return torch.stack(results, 1)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], layers: int = 1, both: bool = False) -> None:
        super().__init__()
        self.cells = kind(WIDTH, 12, layers, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.cells(x)[0]
        return result


class Diffusion(nn.Module):
    """Patches by a convolution, attention between modulated norms, back by a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.modulate = nn.Linear(WIDTH, 2 * WIDTH)
        self.attention = Attention(causal=False)
        self.back = nn.ConvTranspose2d(WIDTH, 3, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x)
        rows = patches.flatten(2).transpose(1, 2)
        scale, shift = self.modulate(rows.mean(1, keepdim=True)).chunk(2, -1)
        rows = self.attention(F.layer_norm(rows, (WIDTH,)) * (1 + scale) + shift)
        result: Tensor = self.back(rows.transpose(1, 2).unflatten(-1, patches.shape[2:]))
        return result


class EncoderDecoder(nn.Module):
    """The decoder reads half as many tokens as the encoder has."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Attention(causal=False), Attention()
        self.cross = Attention(causal=False)

    def forward(self, x: Tensor) -> Tensor:
        memory, first = self.encoder(x), x[:, : x.shape[1] // 2]
        result: Tensor = self.cross(self.decoder(first), memory)
        return result


class LinearAttention(nn.Module):
    """Cumulative sums hold no products; what is summed does."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        state = torch.einsum("btk,btv->btkv", k, v).cumsum(1)
        return torch.einsum("btk,btkv->btv", q, state)


class Spectral(nn.Module):
    """Products of complex numbers: eight FLOPs each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.fft.rfft(x, dim=1) @ self.weight
        result: Tensor = torch.fft.irfft(mixed, x.shape[1], dim=1)
        return result


class Adapters(nn.Module):
    """A frozen layer with a low-rank branch, and a score of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        self.query = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x) + self.b(self.a(x))
        score = torch.mv(x.flatten(0, 1), self.query)
        result: Tensor = score + torch.dot(score, score)
        return result


def dense(batch: int, context: int) -> Tokens:
    body = nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, VOCABULARY))
    return Tokens(body, batch, context)


def attention(batch: int, context: int) -> Tokens:
    return Tokens(Attention(), batch, context)


def grouped_heads(batch: int, context: int) -> Tokens:
    return Tokens(Attention(key_heads=2), batch, context)


def experts_by_loop(batch: int, context: int) -> Tokens:
    return Tokens(Experts(grouped=False), batch, context)


def experts_by_grouped_mm(batch: int, context: int) -> Tokens:
    return Tokens(Experts(grouped=True), batch, context)


def state_space(batch: int, context: int) -> Tokens:
    return Tokens(StateSpace(), batch, context)


def lstm(batch: int, context: int) -> Tokens:
    return Tokens(Recurrent(nn.LSTM, 2), batch, context)


def lstm_both_ways(batch: int, context: int) -> Tokens:
    return Tokens(Recurrent(nn.LSTM, 2, both=True), batch, context)


def gru(batch: int, context: int) -> Tokens:
    return Tokens(Recurrent(nn.GRU), batch, context)


def elman(batch: int, context: int) -> Tokens:
    return Tokens(Recurrent(nn.RNN), batch, context)


def encoder_decoder(batch: int, context: int) -> Tokens:
    return Tokens(EncoderDecoder(), batch, context)


def linear_attention(batch: int, context: int) -> Tokens:
    return Tokens(LinearAttention(), batch, context)


def spectral(batch: int, context: int) -> Tokens:
    return Tokens(Spectral(), batch, context)


def adapters(batch: int, context: int) -> Tokens:
    return Tokens(Adapters(), batch, context)


def convnet(batch: int, context: int) -> Pictures:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, dilation=2)
    return Pictures(nn.Sequential(*layers), batch, context)


def grouped_convolutions(batch: int, context: int) -> Pictures:
    layers = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 16, 3, groups=4), nn.Conv2d(16, 8, (3, 1), groups=8)
    return Pictures(nn.Sequential(*layers), batch, context)


def depthwise(batch: int, context: int) -> Pictures:
    layers = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 7, padding="same", groups=12)
    return Pictures(nn.Sequential(*layers, nn.Conv2d(12, 24, 1)), batch, context)


def transposed(batch: int, context: int) -> Pictures:
    down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
    return Pictures(nn.Sequential(down, up), batch, context)


def volumes(batch: int, context: int) -> Pictures:
    layers = nn.Conv3d(3, 6, (1, 3, 3), groups=3), nn.ConvTranspose3d(6, 6, 2, groups=6)
    return Pictures(nn.Sequential(*layers), batch, context, sizes=3)


def diffusion(batch: int, context: int) -> Pictures:
    return Pictures(Diffusion(), batch, context)
