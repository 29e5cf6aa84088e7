"""Bare attention: every kernel against softmax by definition."""

from __future__ import annotations

import math
import shutil
import tempfile

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor

from sysbench.core.spec.choices import Kernel
from sysbench.core.worker.compile.plain_paths import is_plain
from sysbench.core.worker.workloads.attention import BareAttention

SHAPE = (2, 3, 9, 4)


def inputs() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(SHAPE, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def by_definition(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_result_and_gradients_are_those_of_the_definition(kernel: Kernel, causal: bool) -> None:
    mine, theirs = inputs(), inputs()
    result = BareAttention(kernel, SHAPE[2], causal=causal)(*mine)
    expected = by_definition(*theirs, causal=causal)
    torch.testing.assert_close(result, expected)
    gradient = torch.randn_like(result)
    torch.autograd.backward([result, expected], [gradient, gradient])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_it_has_no_parameters(kernel: Kernel) -> None:
    assert not list(BareAttention(kernel, 8, causal=True).parameters())


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs g++ here")
@pytest.mark.skipif(
    not (is_plain(torch.__file__) and is_plain(tempfile.gettempdir())),
    reason="torch compiles from plain paths only, which workers have and this process has not",
)
def test_flex_is_compiled_and_causal() -> None:
    q, k, v = (tensor.detach().float() for tensor in inputs())
    # No pool of processes, no header compiled for the kernels that would share it (it is one), and
    # no program compiled for each instruction set to see whether it runs.
    cheap = {
        "compile_threads": 1,
        "cpp_cache_precompile_headers": False,
        "cpp.vec_isa_ok": True,
    }
    with torch.inference_mode(), inductor.patch(cheap):
        result = BareAttention("flex", SHAPE[2], causal=True)(q, k, v)
    torch.testing.assert_close(result, by_definition(q, k, v, causal=True))
