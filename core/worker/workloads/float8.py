"""Linear layers whose three products are in float8, converted by torchao."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sysbench.core.errors import SpecError
from sysbench.core.record.environment import LinearLayers
from sysbench.core.record.steps import ProductError
from sysbench.core.spec.choices import FLOAT8_MULTIPLE, Precision

INSTALL = "pip install 'sysbench-tui[fp8]'"
TIMED_CALLS = 10
SLEEP_CYCLES = 1_000_000
"""Half a millisecond of a GPU: longer than enqueuing `TIMED_CALLS` products takes."""


def with_float8(
    model: nn.Module, precision: Precision
) -> tuple[nn.Module, tuple[LinearLayers, ...]]:
    """Convert the model's linear layers in place; also return which were converted.

    Weights stay as they are: each product scales and casts its operands again.

    Raises:
        SpecError: torchao is missing, or no layer can be converted.
    """
    torchao = _torchao(precision)
    found = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    head = _head(model, [*found.values()])
    reasons = {each: _why_not(each, head) for each in found.values()}
    counts = Counter(
        (_folded(name), each.in_features, each.out_features, reasons[each])
        for name, each in found.items()
    )
    layers = tuple(
        LinearLayers(name=name, layers=count, in_features=width, out_features=rows, why_not=why)
        for (name, width, rows, why), count in counts.items()
    )
    if all(row.why_not for row in layers):
        whys = "; ".join(sorted({row.why_not for row in layers})) or "the model has none"
        allowed = f"{precision.autocast_only}: no linear layer can be in float8 ({whys})"
        raise SpecError("precision", precision.name, allowed)
    config = torchao.Float8LinearConfig.from_recipe_name(precision.float8)
    converted: nn.Module = torchao.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda each, _: not reasons[each]
    )
    return converted, layers


def product_errors(
    model: nn.Module, run: Callable[[], None], *, has_backward: bool = True
) -> list[ProductError]:
    """Compare the products that converted layers compute in ``run`` with exact ones, and time the
    same in the dtype of autocast.

    Compiled modules call no hooks, so they have none.
    """
    sums: dict[str, Tensor] = {}
    times: dict[str, float] = {}

    def add(name: str, layer: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> None:
        is_again = torch._C._current_graph_task_id() >= 0  # a checkpoint, in the backward pass
        with torch.no_grad(), torch.autocast(output.device.type, enabled=False):
            if output.is_cuda:
                with_gradients = has_backward and not is_again
                took = _products_ns(layer, args[0], output, with_gradients=with_gradients)
                times[name] = times.get(name, 0.0) + took
            if is_again:
                return
            exact, lower = (
                F.linear(*(one if one is None else one.to(dtype) for one in operands)).float()
                for operands in [(args[0], layer.weight, layer.bias)]
                for dtype in (torch.float32, output.dtype)
            )
            parts = (output.float() - exact, lower - exact, exact)
            squares = torch.stack([part.square().sum() for part in parts]).double()
        sums[name] = sums.get(name, 0) + squares

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if is_float8(module):
                hook = module.register_forward_hook(partial(add, _folded(name)))
                stack.callback(hook.remove)
        run()
    found = {name: [one**0.5 for one in each.tolist()] for name, each in sums.items()}
    return [
        ProductError(
            name=name,
            float8=float8 / size,
            autocast=autocast / size,
            autocast_ns=times.get(name),
        )
        for name, (float8, autocast, size) in found.items()
        if size
    ]


def _products_ns(layer: nn.Linear, given: Tensor, output: Tensor, *, with_gradients: bool) -> float:
    """Time a layer's products in the dtype of its output: forward, and those of its gradients."""
    rows, weight, gradient = (
        one.detach().to(output.dtype).reshape(-1, one.shape[-1])
        for one in (given, layer.weight, output)
    )
    products = [(rows, weight.t())]
    if output.requires_grad and with_gradients:
        products.append((gradient.t(), rows))
        if given.requires_grad:
            products.append((gradient, weight))
    return sum(_kernel_ns(partial(torch.mm, *operands)) for operands in products)


def _kernel_ns(call: Callable[[], object]) -> float:
    """Mean time of a call on the GPU, which sleeps until all calls are enqueued."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    call()
    torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(TIMED_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6 / TIMED_CALLS


def _folded(name: str) -> str:
    """The path with ``*`` for indices."""
    return re.sub(r"\b\d+\b", "*", name)


def is_float8(module: nn.Module) -> bool:
    return hasattr(module, "linear_mm_config")


def float8_library() -> str:
    """``torchao 0.18.0``."""
    return f"torchao {metadata.version('torchao')}"


def _torchao(precision: Precision) -> Any:
    try:
        import torchao.float8  # lazy: an extra
    except ImportError as error:
        allowed = f"{precision.autocast_only}, or install torchao: {INSTALL} ({error})"
        raise SpecError("precision", precision.name, allowed) from error
    return torchao.float8


def _why_not(layer: nn.Linear, head: nn.Linear | None) -> str:
    if type(layer) is not nn.Linear:
        return f"a {type(layer).__name__}, whose code may use the weight itself"
    if layer is head:
        return "the output head"
    odd = [
        f"{name} = {size:,}"
        for name, size in (("inputs", layer.in_features), ("outputs", layer.out_features))
        if size % FLOAT8_MULTIPLE
    ]
    return f"{' and '.join(odd)} not divisible by {FLOAT8_MULTIPLE}" if odd else ""


def _head(model: nn.Module, layers: list[nn.Linear]) -> nn.Linear | None:
    """The last linear layer if it has as many outputs as the first embedding has rows."""
    rows = (one.num_embeddings for one in model.modules() if isinstance(one, nn.Embedding))
    return layers[-1] if layers and layers[-1].out_features == next(rows, None) else None
