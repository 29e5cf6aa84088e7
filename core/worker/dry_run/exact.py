"""Exact predictions by dry runs, which are extended from shallow ones if the blocks repeat."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.closed_form import ROWS, predict
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    Amounts,
    DryRun,
    EagerStep,
    ExactPrediction,
    Moment,
    PhasePrediction,
    ProductCount,
    SentBytes,
    TrainingVariant,
    extended,
    longer,
)
from sysbench.core.predict.pipeline_requests import OneF1B
from sysbench.core.predict.requests import (
    SHALLOW,
    RequestTrace,
    extended_trace,
    replay_requests,
    without_returned,
)
from sysbench.core.predict.sizes import workspace_bytes
from sysbench.core.record.record import LedgerRow
from sysbench.core.spec.own_model import canonical_arguments, decoded_arguments, source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.dry_step import Places, dry_run, places_of
from sysbench.core.worker.dry_run.operations import PLAIN_VALUES, RESULTS
from sysbench.core.worker.dry_run.storages import Place
from sysbench.core.worker.workloads.huggingface import model_class
from sysbench.core.worker.workloads.model_workload import parts_of

DEPTHS = (SHALLOW - 1, SHALLOW, SHALLOW + 1)
"""Two depths that are extended, and a third that must confirm the result."""

MAX_WHOLE_LAYERS = sum(DEPTHS)
"""Layers that are all played: as many as in the three depths together."""

MAX_WHOLE = 12
"""Micro-batches that are all played."""

DEPTH = "num_hidden_layers"
"""Attribute of configurations for the number of blocks, possibly an alias."""


class Blocks(NamedTuple):
    """Name of the module list and number of identical blocks."""

    name: str
    layers: int


def exact_prediction(
    spec: RunSpec, capability: str | None = None, variant: TrainingVariant = PLAIN
) -> ExactPrediction:
    """Run the step on meta tensors and sum it; extend shallow dry runs of a deep model."""
    eager = None
    if spec.compile != "off":
        before = exact_prediction(spec.changed(compile="off"), capability, variant)
        eager = EagerStep(
            saved_activation_bytes=before.saved_activation_bytes,
            peak_bytes=before.peak_bytes,
            peak_phase=before.peak_phase,
        )
    RESULTS.clear()
    run, how = dry_run_at_depth(spec, capability, variant)
    closed = None if spec.is_own else predict(spec)
    requests = run.trace.requests() if spec.on_cuda and run.trace is not None else None
    if eager is not None:
        requests = None  # compiled code was not compared with a card's
    elif requests is not None and variant.world.size > 1:
        requests = without_returned(requests)  # each rank builds its shards only
    phases = [
        _phase(spec, run, name) for name in dict.fromkeys(moment.phase for moment in run.moments)
    ]
    held = None
    if requests is not None:
        held = replay_requests(
            requests, workspace_bytes(capability), parse_allocator_settings(os.environ)
        )
    peak = max(run.moments, key=lambda moment: sum(moment.requested))
    flops = {phase.phase: phase.flops for phase in phases}
    forward = flops.get("forward", 0)
    return ExactPrediction(
        parameters=closed.parameters if closed else run.parameters,
        parameter_bytes=closed.parameter_bytes
        if closed and not spec.precision_row.keeps_weights
        else run.parameter_bytes,
        forward_flops=forward,
        causal_forward_flops=closed.causal_forward_flops if closed else forward,
        backward_flops=flops.get("backward", 0),
        step_flops=sum(flops.values()),
        saved_activation_bytes=run.saved_bytes,
        ledger=_ledger(peak.requested),
        block_ledger=_ledger(peak.rounded) if spec.on_cuda else None,
        peak_bytes=sum(peak.requested),
        peak_phase=peak.phase,
        peak_place=_place(spec, peak),
        phases=phases,
        requests=requests,
        held=held,
        trained_parameters=run.trained_parameters,
        uncounted=sorted(run.uncounted),
        sent=[
            SentBytes(kind=kind, calls=calls, bytes=run.sent[kind])
            for kind, calls in sorted(run.calls.items())
        ],
        linear_layers=run.linear_layers,
        eager=eager,
        method=f"{'not exact' if run.limits else 'exact'}: the step on meta tensors{how}",
        limits=list(run.limits),
        formulas={"parameters": closed.formulas["parameters"]} if closed else {},
    )


def _phase(spec: RunSpec, run: DryRun, name: str) -> PhasePrediction:
    moments = [moment for moment in run.moments if moment.phase == name]
    peak = max(moments, key=lambda moment: sum(moment.requested))
    products = [
        ProductCount(dtype=product.dtype, flops=product.flops, bytes=product.bytes, count=count)
        for (phase, product), count in run.products.items()
        if phase == name
    ]
    return PhasePrediction(
        phase=name,
        peak_bytes=sum(peak.requested),
        block_bytes=max(sum(moment.rounded) for moment in moments) if spec.on_cuda else None,
        place=_place(spec, peak),
        ledger=_ledger(peak.requested),
        flops=sum(product.flops * product.count for product in products),
        products=products,
        moved_bytes=run.moved_bytes[name],
    )


def _ledger(amounts: Amounts) -> list[LedgerRow]:
    return [LedgerRow(name, count) for name, count in zip(ROWS, amounts, strict=True) if count]


def _place(spec: RunSpec, moment: Moment) -> str:
    if moment.block:
        return f"{moment.place} block {moment.block}".strip()
    return moment.place or (spec.optimizer if moment.phase == "optimizer" else moment.phase)


class Depths(NamedTuple):
    """How a model is made shallower.

    Attributes:
        layers: Number of its blocks.
        at: The spec with another number of blocks.
        places: Places of the modules of a stage, by the index of its first block in the model and
            the number of its blocks.
    """

    layers: int
    at: Callable[[int], RunSpec]
    places: Callable[[int, int], Places]


def dry_run_at_depth(
    spec: RunSpec, capability: str | None = None, variant: TrainingVariant = PLAIN
) -> tuple[DryRun, str]:
    """Dry-run the model, extended from shallow ones if they decide it; also return the method.

    Raises:
        Exception: Any error of the user's code.
    """
    if spec.compile != "off":
        try:
            return dry_run(spec, capability, variant), ", as graphs of torch.compile"
        finally:
            torch.compiler.reset()  # its caches hold the model
    if spec.is_own:
        is_alike = variant.is_alike_in_all_blocks
        found = _of_configuration(spec, capability, variant) if is_alike else None
        if found is not None:
            return found
        run = dry_run(spec, capability, variant)
        return run, " of the whole model" + (f", after {run.alike} like it" if run.alike else "")
    depths = Depths(
        spec.layers,
        lambda layers: spec.changed(layers=layers),
        lambda first, layers: places_of(spec.changed(layers=layers)),
    )
    if variant.world.size > 1:
        is_alike = spec.checkpoint <= 1 and not variant.lora_rank
        found = _of_rank(spec, capability, variant, depths, is_alike=is_alike)
        return found or (dry_run(spec, capability, variant), "")
    # The last segment can be shorter; converting weights requests memory outside of the blocks.
    is_alike = variant.is_alike_in_all_blocks and not spec.precision_row.keeps_weights
    if spec.layers <= SHALLOW or not is_alike or spec.checkpoint:
        return dry_run(spec, capability, variant), ""
    small, large = (dry_run(depths.at(layers), capability, variant) for layers in DEPTHS[:2])
    how = f", {SHALLOW - 1} and {SHALLOW} layers extended to {spec.layers}"
    return _deep(small, large, spec.layers, on_cuda=spec.on_cuda), how


def _of_rank(
    spec: RunSpec,
    capability: str | None,
    variant: TrainingVariant,
    depths: Depths,
    *,
    is_alike: bool,
) -> tuple[DryRun, str] | None:
    """Extend a rank's step in blocks and micro-batches where a third play confirms it.

    Args:
        is_alike: Whether all blocks do the same.
    """
    world, layers, stage, first = variant.world, depths.layers, 0, 0
    schedule = confirming = short = None
    if world.pp > 1:
        stage = world.coordinates(variant.rank)["pp"]
        own = [*world.stage_blocks(layers)][stage]
        layers, first = len(own), own.start
        schedule = OneF1B(min(world.pp - stage, world.microbatches), world.microbatches)
    if schedule is not None and world.schedule == "1f1b" and world.microbatches > MAX_WHOLE:
        short, confirming = schedule.shortened(3), schedule.shortened(4)
    is_deep = layers > MAX_WHOLE_LAYERS and is_alike
    if world.stages > 1 or not (is_deep or short):
        return None

    def play(depth: int, part: OneF1B | None) -> DryRun:
        changed = depths.at(depth * world.pp) if is_deep else spec
        places = depths.places(stage * depth if is_deep else first, depth)
        part_of = msgspec.structs.replace(variant, short=part)
        return dry_run(changed, capability, part_of, places)

    def extend(short: OneF1B | None, confirming: OneF1B | None) -> tuple[DryRun, str] | None:
        played_depths = DEPTHS if is_deep else (layers, layers)
        parts = (*(short for _ in played_depths[1:]), confirming)
        *played, third = map(play, played_depths, parts)

        def at(part: OneF1B | None) -> list[DryRun]:
            return [
                run if short is None or part is None else longer(run, short, part) for run in played
            ]

        try:
            is_confirmed = _is_next(at(confirming), third, layers)
            runs = at(schedule)
            run = _deep(runs[0], runs[1], layers, on_cuda=spec.on_cuda) if is_deep else runs[0]
        except WorkerFailed:
            is_confirmed = False
        if not is_confirmed:
            return None
        how = f", {SHALLOW - 1} and {SHALLOW} blocks extended to {layers}" if is_deep else ""
        if short is not None:
            how += f", {short.microbatches} micro-batches to {world.microbatches}"
        return run, how

    found = extend(short, confirming)
    return extend(None, None) if found is None and short and is_deep else found


def _is_next(runs: Sequence[DryRun], third: DryRun, layers: int) -> bool:
    """Whether shallow steps, or one, predict the third."""
    if len(runs) == 1:
        return _without_order(runs[0]) == _without_order(third) and (
            _is_same(runs[0].trace, third.trace)
        )
    small, large = runs
    predicted, confirmed = extended(small, large, layers), extended(large, third, layers)
    return _without_order(predicted) == _without_order(confirmed) and (
        _extends(small.trace, large.trace, third.trace)
    )


def _deep(small: DryRun, large: DryRun, layers: int, *, on_cuda: bool) -> DryRun:
    trace = None
    if on_cuda and large.trace is not None:
        trace = extended_trace(large.trace, layers, small.trace)
    return replace(extended(small, large, layers), trace=trace)


def _of_configuration(
    spec: RunSpec, capability: str | None, variant: TrainingVariant
) -> tuple[DryRun, str] | None:
    """Extend the dry run of a model with repeated blocks; None for other models."""
    if source_of(spec.model).door != "hf" or spec.trust_code or spec.has_cache:
        return None
    try:
        return _extend(spec, capability, variant)
    except Exception:
        # No shallow model can be built, or the blocks behave differently. The dry run of the
        # whole model follows and raises any error.
        return None


def _extend(
    spec: RunSpec, capability: str | None, variant: TrainingVariant
) -> tuple[DryRun, str] | None:
    world = variant.world
    _, config = model_class(spec)
    layers = getattr(config, DEPTH, 0)
    # The whole model takes no longer, but for many micro-batches.
    if layers <= MAX_WHOLE_LAYERS and world.microbatches <= MAX_WHOLE:
        return None
    lists = {
        name: value  # one entry per layer
        for name, value in vars(config).items()
        if isinstance(value, (list, tuple)) and len(value) == layers
    }
    with torch.device("meta"):
        model = parts_of(spec).model
    blocks = blocks_alike(model)
    if blocks is None or blocks.layers != layers or not all(map(_is_uniform, lists.values())):
        return None

    def at(depth: int) -> RunSpec:
        key = getattr(config, "attribute_map", {}).get(DEPTH, DEPTH)
        changed = {name: list(value[:depth]) for name, value in lists.items()} | {key: depth}
        arguments = canonical_arguments(decoded_arguments(spec.model_args) | changed)
        return spec.changed(model_args=arguments)

    def places(first: int, depth: int) -> Places:
        def place_of(module: str) -> Place:
            found = re.match(rf"{re.escape(blocks.name)}\.(\d+)", module)
            if found is None:
                return Place(0, module)
            return Place(int(found[1]) + 1 - first, f"{blocks.name}.*{module[found.end() :]}")

        return Places(place_of, place_of, depth)

    found = _of_rank(spec, capability, variant, Depths(layers, at, places), is_alike=True)
    if found is None:
        return None
    run, how = found
    whole = [*model.parameters()]
    count, size = sum(one.numel() for one in whole), sum(one.nbytes for one in whole)
    if world.pp == 1 and run.parameters != count:
        return None
    if world.pp > 1:  # extended to as many blocks as the stage has
        run = replace(run, parameters=count, parameter_bytes=size)
    # With the names of the modules in the whole model.
    first = [*world.stage_blocks(layers)][world.coordinates(variant.rank)["pp"]].start
    moments = [
        replace(moment, block=0, place=moment.place.replace("*", str(first + moment.block - 1), 1))
        for moment in run.moments
    ]
    return replace(run, moments=moments), how


def _without_order(run: DryRun) -> tuple[DryRun, Counter[Moment]]:
    return replace(run, moments=[]), Counter(run.moments)


def _extends(
    shallower: RequestTrace | None, trace: RequestTrace | None, deeper: RequestTrace | None
) -> bool:
    """Whether the trace of `SHALLOW` layers and the one before predict one more layer."""
    return trace is not None and _is_same(extended_trace(trace, SHALLOW + 1, shallower), deeper)


def _is_same(predicted: RequestTrace | None, trace: RequestTrace | None) -> bool:
    if predicted is None or trace is None:
        return predicted is trace
    requests, played = predicted.requests(), trace.requests()
    return requests.streams == played.streams and (
        [*_in_one_order(requests.step)] == [*_in_one_order(played.step)]
    )


def _in_one_order(entries: Sequence[int]) -> Iterator[int]:
    """Sort consecutive returns, whose order does not matter."""
    for is_return, group in groupby(entries, key=lambda entry: entry < 0):
        rows = list(group)
        yield from sorted(rows) if is_return else rows


def _is_uniform(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def blocks_alike(model: nn.Module) -> Blocks | None:
    """The model's only module list, if its children differ only in their index."""
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
    """Everything that decides what a block does, by module name."""
    for name, module in block.named_modules():
        yield (name, ""), type(module)
        for kind in (module.named_parameters, module.named_buffers):
            for tensor_name, one in kind(recurse=False):
                yield (name, tensor_name), (one.shape, one.dtype, one.requires_grad)
        for key, value in vars(module).items():
            if key not in _BASE:
                is_plain = isinstance(value, (*PLAIN_VALUES, tuple))
                # Other objects are equal only to themselves.
                yield (name, key), value if is_plain else (type(value), id(value))
