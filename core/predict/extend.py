"""A dry run, and its extrapolation to more layers.

Blocks repeat each other, so at every place of a step the live bytes are affine in the number
of layers and in the block's index. Two shallow models therefore give any deep one exactly: the
worst moment of the blocks between the second and the last but one is in one of these two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.trace import Trace

_Key = TypeVar("_Key")

Amounts = tuple[int, ...]
"""Bytes by row of the ledger, in the order of `closed_form.ROWS`."""


class Product(NamedTuple):
    """A matrix product: its operands' dtype, its FLOPs, and the bytes it reads and writes."""

    dtype: str
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Live bytes just after an operation allocated a storage.

    Attributes:
        block: Index of the block, from 1; 0 outside the blocks.
        place: Name of the part outside the blocks: the embedding, the head, the loss.
        requested: Bytes requested by the step.
        rounded: The same, rounded up to blocks of CUDA's allocator.
    """

    phase: str
    block: int
    place: str
    requested: Amounts
    rounded: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A steady step on tensors without data.

    Attributes:
        layers: Number of blocks that its moments distinguish.
        parameters, parameter_bytes: Those of the model.
        trained_parameters: Count of the parameters that need gradients.
        moments: In order of time; without an order where the step was extrapolated.
        saved_bytes: Bytes that the graph holds after forward and loss, without weights.
        products: Number of times that each phase computes each product.
        moved_bytes: Bytes that all other operations read and write, by phase.
        trace: Its requests for memory, in order; None where the step was extrapolated.
    """

    layers: int
    parameters: int = 0
    parameter_bytes: int = 0
    trained_parameters: int = 0
    moments: list[Moment]
    saved_bytes: int
    products: Counter[tuple[str, Product]]
    moved_bytes: Counter[str]
    trace: Trace | None = field(default=None, compare=False)


def extended(small: DryRun, large: DryRun, layers: int) -> DryRun:
    """The step at another depth, extrapolated from two depths, at least 3, that differ by 1.

    Raises:
        WorkerFailed: The two steps differ in the operations of a block.
    """
    times = layers - small.layers
    at_small, at_large = _labelled(small), _labelled(large)
    if at_small.keys() != at_large.keys():
        raise WorkerFailed("the blocks of the model differ, so that depth cannot be extended")

    def moment(label: _Label) -> Moment:
        a, b = at_small[label], at_large[label]
        return Moment(
            phase=a.phase,
            # From the end, -1 is the last block: layers + 1 - 1.
            block=label.block if label.block >= 0 else layers + 1 + label.block,
            place=a.place,
            requested=_along(a.requested, b.requested, times),
            rounded=_along(a.rounded, b.rounded, times),
        )

    return DryRun(
        layers=layers,
        parameters=_line(small.parameters, large.parameters, times),
        parameter_bytes=_line(small.parameter_bytes, large.parameter_bytes, times),
        trained_parameters=_line(small.trained_parameters, large.trained_parameters, times),
        moments=[moment(label) for label in at_small],
        saved_bytes=_line(small.saved_bytes, large.saved_bytes, times),
        products=_counts(small.products, large.products, times),
        moved_bytes=_counts(small.moved_bytes, large.moved_bytes, times),
    )


class _Label(NamedTuple):
    """A moment's place at any depth: the last two blocks by index from the end, -1 and -2."""

    phase: str
    block: int
    place: str
    ordinal: int


def _labelled(run: DryRun) -> dict[_Label, Moment]:
    ordinals: Counter[tuple[str, int, str]] = Counter()
    labelled = {}
    for moment in run.moments:
        key = moment.phase, moment.block, moment.place
        ordinal = ordinals[key]
        ordinals[key] += 1
        for block in _ends(moment.block, run.layers):
            labelled[_Label(moment.phase, block, moment.place, ordinal)] = moment
    return labelled


def _ends(block: int, layers: int) -> list[int]:
    """Indices of a block that hold at any depth; none for blocks in the middle.

    A block can have two: in 3 layers the second is 2 and -2. Middle blocks need no index, since
    live bytes are affine between the second and the last but one.
    """
    if block in (0, 1):
        return [block]
    if block == layers:
        return [-1]
    return [2] * (block == 2) + [-2] * (block == layers - 1)


def _line(small: int, large: int, times: int) -> int:
    return small + (large - small) * times


def _along(small: Amounts, large: Amounts, times: int) -> Amounts:
    return tuple(_line(a, b, times) for a, b in zip(small, large, strict=True))


def _counts(small: Counter[_Key], large: Counter[_Key], times: int) -> Counter[_Key]:
    return Counter({key: _line(small[key], large[key], times) for key in small | large})
