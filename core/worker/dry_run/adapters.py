"""Low-rank adapters in the model of a dry run: what is there is frozen, what they add is trained.

Hu et al. 2021, arXiv:2106.09685: beside a frozen product x W stands (x A) B, with A and B of a
small rank. The order of the operations is the usual one: product, both small products, their
scaling, the sum.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sysbench.core.errors import ModelError

SCALE = 2.0
"""Factor of the adapters' part: alpha over rank, of no weight for memory."""


def adapt(model: nn.Module, rank: int) -> None:
    """Freeze the model and put adapters of that rank beside its linear layers, but not its head.

    A linear layer with as many rows as a table of embeddings is a head. Adapters have the dtype of
    the layer. Weights outside linear layers, such as those of experts in one tensor, stay frozen.

    Raises:
        ModelError: The model has no such layer.
    """
    model.requires_grad_(False)
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding)]
    heads = {table.num_embeddings for table in tables}
    layers = [
        (layer, shape)
        for layer in list(model.modules())
        if (shape := _shape(layer)) is not None and shape[1] not in heads
    ]
    if not layers:
        raise ModelError("the model has no linear layer beside which an adapter could stand")
    for layer, (width_in, width_out) in layers:
        options: dict[str, Any] = {
            "bias": False,
            "device": layer.weight.device,
            "dtype": layer.weight.dtype,
        }
        layer.add_module("lora_A", nn.Linear(width_in, rank, **options))
        layer.add_module("lora_B", nn.Linear(rank, width_out, **options))
        layer.register_forward_hook(_added)


def _shape(layer: nn.Module) -> tuple[int, int] | None:
    """Widths of input and output of a linear layer that is called as a module; None of others."""
    if type(layer) is nn.Linear:
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D" and isinstance(layer.weight, Tensor):
        width_in, width_out = layer.weight.shape  # transformers' linear layer of GPT-2
        return width_in, width_out
    return None


def _added(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    result: Tensor = output + layer.lora_B(layer.lora_A(inputs[0])) * SCALE
    return result
