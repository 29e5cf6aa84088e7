"""Deep models of the user's whose blocks repeat each other: two shallow ones extended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from ...estimate.extend import Moment, extended
from ...estimate.savings.variant import PLAIN, Variant
from ...estimate.trace import SHALLOW, extended_trace
from ...spec.own_model import canonical_arguments, decoded_arguments, source_of
from ...spec.spec import RunSpec
from ..workloads.huggingface import model_class
from ..workloads.own import parts_of
from .own import OwnPlayed, play_own
from .results import PLAIN_VALUES
from .storages import Place

LEAST_LAYERS = 2 * SHALLOW + 1
"""Fewer are played as fast as the two shallow models."""

DEPTH = "num_hidden_layers"
"""Name that configurations have for the count of blocks, or under which they find it."""

REPEATING = frozenset(
    (
        *("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmo2", "olmoe"),
        *("granite", "phi", "cohere", "gpt2", "gpt_neox", "bloom", "falcon"),
        *("bert", "roberta", "distilbert", "vit", "deit", "mamba", "mamba2"),
    )
)
"""Kinds of models that run their blocks one after the other, and treat no index apart.

Held by tests/core/worker/dry_run/test_repeated.py: their extended steps are their whole ones.
"""


class Blocks(NamedTuple):
    """The blocks of a model, all alike: the name of their list, and their number."""

    name: str
    layers: int


def play_at_depth(
    spec: RunSpec, capability: str | None = None, variant: Variant = PLAIN
) -> tuple[OwnPlayed, str]:
    """`play_own` of the whole model, or of two shallow ones where that gives the same; and which.

    Args:
        capability, variant: As `play_own` takes them.

    Raises:
        Exception: Whatever the user's code raises.
    """
    if variant == PLAIN:
        try:
            if (own := _extended(spec, capability)) is not None:
                how = f", {SHALLOW - 1} and {SHALLOW} blocks extended to {own.played.layers}"
                return own, how
        except Exception:
            # The blocks differ in what they do, or no shallow model can be built: the whole one
            # is played, and tells what is wrong with it.
            pass
    return play_own(spec, capability, variant), " of the whole model"


def _extended(spec: RunSpec, capability: str | None) -> OwnPlayed | None:
    """The step of a model whose blocks are all alike; None of another one."""
    if source_of(spec.model).door != "hf" or spec.trust_code:
        return None
    _, config = model_class(spec)
    if config.model_type not in REPEATING or config.num_hidden_layers < LEAST_LAYERS:
        return None
    with torch.device("meta"):
        model = parts_of(spec).model
    blocks = blocks_alike(model)
    if blocks is None or blocks.layers != config.num_hidden_layers:
        return None
    lists = dict(_by_layer(config, blocks.layers))
    if not all(map(_is_uniform, lists.values())):
        return None

    def place_of(module: str) -> Place:
        found = re.match(rf"{re.escape(blocks.name)}\.(\d+)", module)
        if found is None:
            return Place(0, module)
        return Place(int(found[1]) + 1, f"{blocks.name}.*{module[found.end() :]}")

    small, large = (
        play_own(
            _at_depth(spec, config, lists, layers), capability, layers=layers, place_of=place_of
        )
        for layers in (SHALLOW - 1, SHALLOW)
    )
    played = extended(small.played, large.played, blocks.layers)
    trace = None
    if spec.on_cuda and large.played.trace is not None:
        trace = extended_trace(large.played.trace, blocks.layers)
    parameters = list(model.parameters())
    counted = sum(one.numel() for one in parameters)
    per_block = large.parameters - small.parameters
    if counted != large.parameters + per_block * (blocks.layers - SHALLOW):
        return None
    return OwnPlayed(
        replace(played, moments=[_named(moment) for moment in played.moments], trace=trace),
        counted,
        sum(one.nbytes for one in parameters),
    )


def _at_depth(
    spec: RunSpec, config: Any, lists: Mapping[str, Sequence[Any]], layers: int
) -> RunSpec:
    key = getattr(config, "attribute_map", {}).get(DEPTH, DEPTH)
    changed = {name: list(values[:layers]) for name, values in lists.items()}
    arguments = decoded_arguments(spec.model_args) | changed | {key: layers}
    return spec.changed(model_args=canonical_arguments(arguments))


def _by_layer(config: Any, count: int) -> Iterator[tuple[str, Sequence[Any]]]:
    """What a configuration says of each layer in turn."""
    for name, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == count:
            yield name, value


def _is_uniform(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _named(moment: Moment) -> Moment:
    """The moment with the name of its module, as the whole model's step has it."""
    return replace(moment, block=0, place=moment.place.replace("*", str(moment.block - 1), 1))


def blocks_alike(model: nn.Module) -> Blocks | None:
    """The model's only list of modules, if its children differ in nothing but their index."""
    lists = [(name, one) for name, one in model.named_modules() if type(one) is nn.ModuleList]
    if len(lists) != 1 or not len(lists[0][1]):
        return None
    name, blocks = lists[0]
    facts = [dict(_facts(block)) for block in blocks]
    is_alike = all(one.keys() == facts[0].keys() for one in facts) and all(
        _is_uniform(values) or values == list(range(len(values)))
        for values in ([one[key] for one in facts] for key in facts[0])
    )
    return Blocks(name, len(facts)) if is_alike else None


_BASE = frozenset(vars(nn.Module()))


def _facts(block: nn.Module) -> Iterator[tuple[tuple[str, str], Any]]:
    """All of a block that decides what it does: by the name of a module in it, and what of it."""
    for name, module in block.named_modules():
        yield (name, ""), type(module)
        for kind in (module.named_parameters, module.named_buffers):
            for tensor_name, one in kind(recurse=False):
                yield (name, tensor_name), (one.shape, one.dtype, one.requires_grad)
        for key, value in vars(module).items():
            if key not in _BASE:
                is_plain = isinstance(value, (*PLAIN_VALUES, tuple))
                # Any other object is like itself alone.
                yield (name, key), value if is_plain else (type(value), id(value))
