"""Linear layers whose products are in 8 or 4 bits, converted by torchao."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module, metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sysbench.core.errors import SpecError
from sysbench.core.record.environment import LinearLayers
from sysbench.core.record.steps import ProductError
from sysbench.core.spec.choices import BLOCK_MULTIPLE, PRODUCT_MULTIPLE, Precision

INSTALL = "pip install 'sysbench-tui[fp8]'"
TIMED_CALLS = 10
SLEEP_CYCLES = 1_000_000
"""Half a millisecond of a GPU: longer than enqueuing `TIMED_CALLS` products takes."""


def convert_linears(
    model: nn.Module, precision: Precision
) -> tuple[nn.Module, tuple[LinearLayers, ...]]:
    """Convert the model's linear layers in place; also return which were converted.

    For training weights stay as they are, and each product scales and casts its operands again. A
    recipe that keeps weights replaces them by their blocks and scales.

    Raises:
        SpecError: torchao is missing, or no layer can be converted.
    """
    torchao = _torchao(precision)
    found = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    head = _head(model, [*found.values()])
    block = BLOCK_MULTIPLE if precision.keeps_weights else PRODUCT_MULTIPLE
    reasons = {each: _why_not(each, head, block) for each in found.values()}
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
        allowed = f"{precision.autocast_only}: no linear layer can be in {precision.name} ({whys})"
        raise SpecError("precision", precision.name, allowed)
    if precision.keeps_weights:
        quantise = {"mxfp8": _to_mxfp8, "nvfp4": _to_nvfp4}[precision.recipe]
        for each, reason in reasons.items():
            if not reason:
                quantise(each, torchao)
        return model, layers
    config = torchao.float8.Float8LinearConfig.from_recipe_name(precision.recipe)
    converted: nn.Module = torchao.float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda each, _: not reasons[each]
    )
    return converted, layers


def _to_mxfp8(layer: nn.Linear, torchao: Any) -> None:
    config = torchao.prototype.mx_formats.MXDynamicActivationMXWeightConfig()
    torchao.quantization.quantize_(layer, config)


def _to_nvfp4(layer: nn.Linear, torchao: Any) -> None:
    """As ``NVFP4DynamicActivationNVFP4WeightConfig``, which asks for a GPU even on meta tensors.

    Inputs are cast by torch's operators: torchao's kernel for it needs another library, MSLK.
    """
    nvfp4_tensor = torchao.prototype.mx_formats.nvfp4_tensor
    options = {"is_swizzled_scales": True, "use_triton_kernel": False}
    weight = layer.weight.detach()
    quantised = nvfp4_tensor.NVFP4Tensor.to_nvfp4(
        weight,
        per_tensor_scale=nvfp4_tensor.per_tensor_amax_to_scale(weight.abs().max()),
        act_quant_kwargs=nvfp4_tensor.QuantizeTensorToNVFP4Kwargs(**options),
        **options,
    )
    layer.weight = nn.Parameter(quantised, requires_grad=False)


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
        weight = layer.weight.dequantize() if _is_in_blocks(layer) else layer.weight
        with torch.no_grad(), torch.autocast(output.device.type, enabled=False):
            if output.is_cuda:
                with_gradients = has_backward and not is_again
                took = _products_ns(weight, args[0], output, with_gradients=with_gradients)
                times[name] = times.get(name, 0.0) + took
            if is_again or _is_in_blocks(layer):
                return
            exact, lower = (
                F.linear(*(one if one is None else one.to(dtype) for one in operands)).float()
                for operands in [(args[0], weight, layer.bias)]
                for dtype in (torch.float32, output.dtype)
            )
            parts = (output.float() - exact, lower - exact, exact)
            squares = torch.stack([part.square().sum() for part in parts]).double()
        sums[name] = sums.get(name, 0) + squares

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if is_float8(module) or _is_in_blocks(module):
                hook = module.register_forward_hook(partial(add, _folded(name)))
                stack.callback(hook.remove)
        run()
    found = {name: [one**0.5 for one in each.tolist()] for name, each in sums.items()}
    return [
        ProductError(
            name=name,
            float8=float8 / size,
            autocast=autocast / size,
            autocast_ns=times.pop(name, None),
        )
        for name, (float8, autocast, size) in found.items()
        if size
    ] + [ProductError(name=name, autocast_ns=ns) for name, ns in times.items()]


def _products_ns(weight: Tensor, given: Tensor, output: Tensor, *, with_gradients: bool) -> float:
    """Time a layer's products in the dtype of its output: forward, and those of its gradients."""
    rows, weight, gradient = (
        one.detach().to(output.dtype).reshape(-1, one.shape[-1]) for one in (given, weight, output)
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


def _is_in_blocks(module: nn.Module) -> bool:
    return hasattr(getattr(module, "weight", None), "qdata")


def torchao_version() -> str:
    """``torchao 0.18.0``."""
    return f"torchao {metadata.version('torchao')}"


def _torchao(precision: Precision) -> Any:
    formats = "torchao.prototype.mx_formats" if precision.keeps_weights else "torchao.float8"
    try:
        import torchao  # lazy: an extra

        import_module(formats)
    except ImportError as error:
        allowed = f"{precision.autocast_only}, or install torchao: {INSTALL} ({error})"
        raise SpecError("precision", precision.name, allowed) from error
    return torchao


def _why_not(layer: nn.Linear, head: nn.Linear | None, block: int) -> str:
    if type(layer) is not nn.Linear:
        return f"a {type(layer).__name__}, whose code may use the weight itself"
    if layer is head:
        return "the output head"
    odd = [
        f"{name} = {size:,} not divisible by {divisor}"
        for name, size, divisor in (
            ("inputs", layer.in_features, block),
            ("outputs", layer.out_features, PRODUCT_MULTIPLE),
        )
        if size % divisor
    ]
    return " and ".join(odd)


def _head(model: nn.Module, layers: list[nn.Linear]) -> nn.Linear | None:
    """The last linear layer if it has as many outputs as the first embedding has rows."""
    rows = (one.num_embeddings for one in model.modules() if isinstance(one, nn.Embedding))
    return layers[-1] if layers and layers[-1].out_features == next(rows, None) else None
