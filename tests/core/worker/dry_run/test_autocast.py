"""Autocast's casts, emulated on tensors without data: the dtypes that torch gives on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sysbench.core.spec.choices import attention_named
from sysbench.core.worker.dry_run.device import CpuFunctions, CudaFunctions

Make = Callable[..., Tensor]

PRODUCTS: dict[str, Callable[[Make], Any]] = {
    "linear": lambda new: F.linear(new(4, 4), new(4, 4)),
    "matmul": lambda new: new(4, 4) @ new(4, 4),
    "mm": lambda new: new(4, 4).mm(new(4, 4)),
    "bmm": lambda new: torch.bmm(new(2, 4, 4), new(2, 4, 4)),
    "einsum": lambda new: torch.einsum("ij,jk->ik", new(4, 4), new(4, 4)),
    "addmm": lambda new: torch.addmm(new(4, 4), new(4, 4), new(4, 4)),
    "addbmm": lambda new: new(4, 4).addbmm(new(2, 4, 4), new(2, 4, 4)),
    "baddbmm": lambda new: new(2, 4, 4).baddbmm(new(2, 4, 4), new(2, 4, 4)),
    "mv": lambda new: new(4, 4).mv(new(4)),
    "addmv": lambda new: torch.addmv(new(4), new(4, 4), new(4)),
    "addr": lambda new: torch.addr(new(4, 4), new(4), new(4)),
    "outer": lambda new: torch.outer(new(4), new(4)),
    "multi_dot": lambda new: torch.linalg.multi_dot([new(4, 4), new(4, 4)]),
    "vecdot": lambda new: torch.linalg.vecdot(new(4, 4), new(4, 4)),
    "prelu": lambda new: F.prelu(new(4, 4), new(1)),
    "conv1d": lambda new: F.conv1d(new(1, 4, 8), new(4, 4, 3)),
    "conv_transpose1d": lambda new: F.conv_transpose1d(new(1, 4, 8), new(4, 4, 3)),
    "in float64": lambda new: new(4, 4).double() @ new(4, 4).double(),
}
"""Of operands in float32."""


def of_one(name: str, new: Make) -> Any:
    return getattr(torch, name)(new(4, 4))


def along_the_last(name: str, new: Make) -> Any:
    return getattr(new(4, 4), name)(-1)


def of_two(name: str, new: Make) -> Any:
    return getattr(F, name)(new(4, 4), new(4, 4))


OTHERS: dict[str, Callable[[Make], Any]] = {
    **{
        f"torch.{name}": partial(of_one, name)
        for name in (
            *("exp", "log", "log1p", "expm1", "rsqrt", "reciprocal", "square", "sqrt", "tanh"),
            *("sigmoid", "cosh", "tan", "sum", "mean", "var", "norm", "trace", "abs", "sin"),
        )
    },
    **{
        f"Tensor.{name}": partial(along_the_last, name)
        for name in ("softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "pow", "amax")
    },
    **{
        f"F.{name}": partial(of_two, name)
        for name in (
            *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
            *("binary_cross_entropy_with_logits", "soft_margin_loss", "poisson_nll_loss"),
        )
    },
    "softplus": lambda new: F.softplus(new(4, 4)),
    "gelu": lambda new: F.gelu(new(4, 4)),
    "layer_norm": lambda new: F.layer_norm(new(4, 4), (4,)),
    "group_norm": lambda new: F.group_norm(new(1, 4, 4), 2),
    "batch_norm": lambda new: F.batch_norm(new(4, 4), None, None, training=True),
    "**": lambda new: new(4, 4) ** 2,
    "2 **": lambda new: 2 ** new(4, 4),
    "1 /": lambda new: 1 / new(4, 4),
    "vector_norm": lambda new: torch.linalg.vector_norm(new(4, 4)),
    "cdist": lambda new: torch.cdist(new(4, 4), new(4, 4)),
    "interpolate": lambda new: F.interpolate(new(1, 1, 4, 4), scale_factor=2),
    "avg_pool2d": lambda new: F.avg_pool2d(new(1, 1, 4, 4), 2),
    "avg_pool3d": lambda new: F.avg_pool3d(new(1, 1, 4, 4, 4), 2),
    "grid_sample": lambda new: F.grid_sample(new(1, 1, 4, 4), new(1, 2, 2, 2), align_corners=True),
}
"""Of operands in bfloat16."""

CASES = [
    *((torch.float32, name, call) for name, call in PRODUCTS.items()),
    *((torch.bfloat16, name, call) for name, call in OTHERS.items()),
]
DEVICES = [
    pytest.param("cpu", CpuFunctions, id="cpu"),
    pytest.param(
        *("cuda", CudaFunctions),
        id="cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("dtype", "call"),
    [(dtype, call) for dtype, _, call in CASES],
    ids=[name for _, name, _ in CASES],
)
@pytest.mark.parametrize(("device", "functions"), DEVICES)
def test_a_result_has_the_dtype_that_it_has_on_the_device(
    device: str,
    functions: type[CpuFunctions],
    dtype: torch.dtype,
    call: Callable[[Make], Tensor],
) -> None:
    with torch.autocast(device, torch.bfloat16):
        expected = call(lambda *sizes: torch.rand(*sizes, device=device).to(dtype))
    with functions(torch.bfloat16, attention_named("sdpa")):
        dry = call(lambda *sizes: torch.empty(*sizes, device="meta", dtype=dtype))
    assert dry.dtype == expected.dtype
