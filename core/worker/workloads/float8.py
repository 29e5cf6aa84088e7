"""Linear layers whose three products are in float8, converted by torchao."""

from __future__ import annotations

import re
from collections import Counter
from importlib import metadata
from typing import Any

from torch import nn

from sysbench.core.errors import SpecError
from sysbench.core.record.environment import LinearLayers
from sysbench.core.spec.choices import FLOAT8_MULTIPLE, Precision

INSTALL = "pip install 'sysbench-tui[fp8]'"


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
        (re.sub(r"\b\d+\b", "*", name), each.in_features, each.out_features, reasons[each])
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
