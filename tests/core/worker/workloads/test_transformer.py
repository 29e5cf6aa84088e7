"""The transformer against formulas written without it, in float64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.core.spec.models import Dimensions, model_presets
from sysbench.core.worker.workloads.transformer import Transformer

SMALL = Dimensions(vocab=29, d_model=24, d_ff=20, layers=2, heads=3)
ODD_SIZES = [
    (Dimensions(vocab=1, d_model=2, d_ff=1, layers=1, heads=1), 1, 1),
    (Dimensions(vocab=7, d_model=2, d_ff=3, layers=3, heads=1), 1, 5),
    (Dimensions(vocab=13, d_model=20, d_ff=7, layers=1, heads=5), 3, 1),
    (Dimensions(vocab=11, d_model=18, d_ff=31, layers=2, heads=3), 2, 17),
    (SMALL, 3, 9),
]


def reference(weights: Mapping[str, Tensor], size: Dimensions, tokens: Tensor) -> Tensor:
    """Logits by the textbook formulas: rotations are complex products, one head at a time."""

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return gain * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def turn(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        position = torch.arange(x.shape[-2], dtype=torch.float64)
        frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = position[:, None] * frequency
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angle)
        return torch.cat((turned.real, turned.imag), -1)

    def attention(x: Tensor, name: str) -> Tensor:
        q, k, v = (x @ weights[f"{name}.{part}.weight"].T for part in ("q", "k", "v"))
        results = []
        for head in range(size.heads):
            at = slice(head * size.head_dimension, (head + 1) * size.head_dimension)
            scores = turn(q[..., at]) @ turn(k[..., at]).mT / math.sqrt(size.head_dimension)
            later = torch.ones(scores.shape[-2:]).triu(1).bool()
            results.append(scores.masked_fill(later, -math.inf).softmax(-1) @ v[..., at])
        return torch.cat(results, -1) @ weights[f"{name}.out.weight"].T

    def feed_forward(x: Tensor, name: str) -> Tensor:
        w1, w2, w3 = (weights[f"{name}.w{number}.weight"].T for number in (1, 2, 3))
        gate = x @ w1
        return (gate * torch.sigmoid(gate) * (x @ w3)) @ w2

    x = weights["embedding.weight"][tokens]
    for index in range(size.layers):
        block = f"blocks.{index}"
        x = x + attention(norm(x, weights[f"{block}.attention_norm.weight"]), f"{block}.attention")
        x = x + feed_forward(norm(x, weights[f"{block}.ffn_norm.weight"]), f"{block}.ffn")
    return norm(x, weights["norm.weight"]) @ weights["head.weight"].T


def reference_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood."""
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return (torch.logsumexp(logits, -1) - chosen).mean()


def make(size: Dimensions, batch: int, context: int, *, naive: bool) -> tuple[Transformer, Tensor]:
    """A model with gains that are not one, and tokens for it."""
    torch.manual_seed(1)
    model = Transformer(size, context, "naive" if naive else "sdpa")
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model, torch.randint(size.vocab, (batch, context))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that run, and the dtypes that matrix products take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().removeprefix("aten::")
        self.names[name] += 1
        if name in ("mm", "bmm") or "attention" in name:
            self.dtypes |= {arg.dtype for arg in args if isinstance(arg, Tensor)}
        return func(*args, **(kwargs or {}))


def operations_of(model: Transformer, tokens: Tensor) -> Operations:
    """The operations of one forward pass."""
    operations = Operations()
    with operations:
        model(tokens)
    return operations


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
@pytest.mark.parametrize(("size", "batch", "context"), ODD_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_loss_and_every_gradient_match_the_reference(
    size: Dimensions, batch: int, context: int, naive: bool, dtype: torch.dtype
) -> None:
    model, tokens = make(size, batch, context, naive=naive)
    targets = torch.randint(size.vocab, tokens.shape)
    exact = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in model.named_parameters()
    }
    expected = reference(exact, size, tokens)
    expected_loss = reference_loss(expected, targets)
    torch.autograd.backward(expected_loss)

    model.to(dtype)
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.autograd.backward(loss)

    # The rotary table is float32 at heart, whatever the model's dtype.
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float64 else (1e-4, 1e-5)
    torch.testing.assert_close(logits.double(), expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=rtol, atol=atol)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(
            parameter.grad.double(), exact[name].grad, rtol=rtol, atol=atol, msg=name
        )


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
@settings(deadline=None, max_examples=20)
@given(position=st.integers(0, 8), token=st.integers(0, SMALL.vocab - 1))
def test_a_later_token_does_not_change_earlier_logits(
    naive: bool, position: int, token: int
) -> None:
    model, tokens = make(SMALL, 2, 9, naive=naive)
    changed = tokens.clone()
    changed[:, position] = token
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :position], after[:, :position], rtol=0, atol=1e-6)


def test_an_earlier_token_does_change_later_logits() -> None:
    model, tokens = make(SMALL, 1, 9, naive=True)
    changed = tokens.clone()
    changed[0, 2] = (tokens[0, 2] + 1) % SMALL.vocab
    assert (model(tokens) - model(changed))[0, 2:].abs().amax(-1).min() > 1e-4


def test_the_naive_softmax_survives_scores_that_overflow_the_exponential() -> None:
    model, tokens = make(SMALL, 2, 9, naive=True)
    other, _ = make(SMALL, 2, 9, naive=False)
    with torch.no_grad():
        for each in (model, other):
            for name, parameter in each.named_parameters():
                if name.endswith("attention.q.weight"):
                    parameter.mul_(1000)
    assert model(tokens).isfinite().all()
    torch.testing.assert_close(model(tokens), other(tokens), rtol=1e-3, atol=1e-3)


def test_the_seed_decides_every_weight() -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(Transformer(SMALL, 9, "sdpa").parameters())

    assert all(torch.equal(one, two) for one, two in zip(weights(5), weights(5), strict=True))
    matrices = [pair for pair in zip(weights(5), weights(6), strict=True) if pair[0].dim() == 2]
    assert not any(torch.equal(one, two) for one, two in matrices)


def test_weights_have_the_deviations_of_the_handout() -> None:
    torch.manual_seed(0)
    model = Transformer(Dimensions(vocab=512, d_model=256, d_ff=640, layers=1, heads=4), 4, "naive")
    clipped = 0.9975  # of a unit normal clipped at three deviations
    for name, weight in model.named_parameters():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight))
            continue
        std = 1.0 if name == "embedding.weight" else math.sqrt(2 / sum(weight.shape))
        assert weight.std().item() == pytest.approx(clipped * std, rel=0.02)
        assert weight.abs().max().item() <= torch.tensor(3 * std).item()


@pytest.mark.parametrize("name", model_presets())
def test_parameter_counts_of_the_presets_are_those_of_the_model(name: str) -> None:
    size = model_presets()[name].dimensions
    with torch.device("meta"):
        model = Transformer(size, 4, "sdpa")
    assert sum(parameter.numel() for parameter in model.parameters()) == size.parameters
    assert len(list(model.parameters())) == 9 * size.layers + 3


def test_modules_have_the_names_that_tables_show() -> None:
    model = Transformer(SMALL, 4, "naive")
    block = [
        *(f"attention.{part}" for part in ("q", "k", "v", "out")),
        *(f"ffn.{part}" for part in ("w1", "w2", "w3")),
        *("attention_norm", "ffn_norm"),
    ]
    names = {name.removesuffix(".weight") for name, _ in model.named_parameters()}
    blocks = {f"blocks.{index}.{part}" for index in range(SMALL.layers) for part in block}
    assert names == {"embedding", "norm", "head"} | blocks


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
def test_a_forward_has_no_needless_copy_or_cast(naive: bool) -> None:
    model, tokens = make(SMALL, 2, 9, naive=naive)
    names = operations_of(model, tokens).names
    layers = SMALL.layers
    assert names["mm"] == 7 * layers + 1
    assert names["bmm"] == (2 * layers if naive else 0)
    # Batched products want q, k and v with the heads in front, and their result wants back.
    assert names["clone"] == (4 * layers if naive else 0)
    assert names["_to_copy"] == names["contiguous"] == names["copy_"] == names["cat"] == 0
    assert names["where.self"] == (layers if naive else 0)
    fused = sum(count for name, count in names.items() if "flash_attention" in name)
    assert fused == (0 if naive else layers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
def test_under_autocast_matrices_are_low_and_each_cast_happens_once(
    naive: bool, dtype: torch.dtype
) -> None:
    model, tokens = make(SMALL, 2, 9, naive=naive)
    with torch.autocast("cpu", dtype):
        operations = operations_of(model, tokens)
        logits = model(tokens)
    assert logits.dtype == dtype
    assert operations.dtypes == {dtype}
    weights, norms, rotary = 7 * SMALL.layers + 1, 2 * SMALL.layers + 1, 2
    assert operations.names["_to_copy"] == weights + norms + rotary
    torch.testing.assert_close(logits.float(), model(tokens), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
def test_in_pure_bf16_everything_between_norms_is_bf16(naive: bool) -> None:
    model, tokens = make(SMALL, 2, 9, naive=naive)
    expected = model(tokens)
    model.to(torch.bfloat16)
    operations = operations_of(model, tokens)
    assert operations.dtypes == {torch.bfloat16}
    # The CPU's norms go through float32 and back.
    assert operations.names["_to_copy"] == 2 * (2 * SMALL.layers + 1)
    assert all(buffer.dtype in (torch.bfloat16, torch.bool) for buffer in model.buffers())
    torch.testing.assert_close(model(tokens).float(), expected, rtol=0.15, atol=0.15)


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_it_compiles_as_one_graph(naive: bool, autocast: bool) -> None:
    model, tokens = make(SMALL, 2, 9, naive=naive)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    context: AbstractContextManager[object] = (
        torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    )
    with context:
        torch.testing.assert_close(compiled(tokens), model(tokens))


def test_it_asks_nothing_in_a_graph_that_the_oldest_torch_cannot_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before 2.12 the compiler breaks at this question, as it does at a disabled function."""
    asked = torch._dynamo.disable(torch.amp.is_autocast_available)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(torch.amp, "is_autocast_available", asked)
    model, tokens = make(SMALL, 2, 9, naive=True)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(tokens), model(tokens))


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "sdpa"])
def test_shapes_flow_without_data(naive: bool) -> None:
    with torch.device("meta"):
        model = Transformer(
            model_presets()["cs336-2025/small"].dimensions, 16, "naive" if naive else "sdpa"
        )
        tokens = torch.zeros(4, 16, dtype=torch.long)
    logits = model(tokens)
    assert logits.shape == (4, 16, 10_000)
    torch.autograd.backward(logits.sum())
    assert all(parameter.grad is not None for parameter in model.parameters())
