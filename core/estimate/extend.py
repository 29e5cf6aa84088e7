"""One step as it was played on meta tensors, and the same step with more layers.

Blocks repeat each other, so at every place of a step the live bytes are affine in the number
of layers and in the block's index. Two shallow models therefore give any deep one exactly: the
worst moment of the blocks between the second and the last but one is in one of these two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..errors import WorkerFailed

_Key = TypeVar("_Key")

Amounts = tuple[int, ...]
"""Bytes by row of the ledger, in its order."""


class Product(NamedTuple):
    """A matrix product: its operands' dtype, its FLOPs, and the bytes it reads and writes."""

    dtype: str
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Live bytes just after an operation made a storage.

    Attributes:
        block: Index from 1 of the block in which it is; 0 outside of all.
        place: What it is outside of all blocks: the embedding, the head, the loss.
        requested: What the step asked for.
        rounded: The same as blocks of CUDA's allocator.
    """

    phase: str
    block: int
    place: str
    requested: Amounts
    rounded: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A steady step.

    Attributes:
        moments: In order of time, or of no order where the step was extended.
        saved: What the graph holds when forward and loss are done, weights apart.
        products: How often each phase computes each product.
        moved_bytes: By phase, what all other operations read and write.
    """

    layers: int
    moments: list[Moment]
    saved_bytes: int
    products: Counter[tuple[str, Product]]
    moved_bytes: Counter[str]


def extended(small: Played, large: Played, layers: int) -> Played:
    """The step at another depth, from two depths that are at least 3 and differ by 1.

    Raises:
        WorkerFailed: The two did not do the same in each block.
    """
    times = layers - small.layers
    at_small, at_large = _labelled(small), _labelled(large)
    if at_small.keys() != at_large.keys():
        raise WorkerFailed("the blocks of the model differ, so that depth cannot be extended")

    def moment(label: _Label) -> Moment:
        a, b = at_small[label], at_large[label]
        return Moment(
            phase=a.phase,
            block=label.block if label.block >= 0 else layers + 1 + label.block,
            place=a.place,
            requested=_along(a.requested, b.requested, times),
            rounded=_along(a.rounded, b.rounded, times),
        )

    return Played(
        layers=layers,
        moments=[moment(label) for label in at_small],
        saved_bytes=_line(small.saved_bytes, large.saved_bytes, times),
        products=_counts(small.products, large.products, times),
        moved_bytes=_counts(small.moved_bytes, large.moved_bytes, times),
    )


class _Label(NamedTuple):
    """A moment's place at any depth: blocks by index, the last two by index from the end."""

    phase: str
    block: int
    place: str
    ordinal: int


def _labelled(played: Played) -> dict[_Label, Moment]:
    ordinals: Counter[tuple[str, int, str]] = Counter()
    labelled = {}
    for moment in played.moments:
        key = moment.phase, moment.block, moment.place
        ordinal = ordinals[key]
        ordinals[key] += 1
        for block in _ends(moment.block, played.layers):
            labelled[_Label(moment.phase, block, moment.place, ordinal)] = moment
    return labelled


def _ends(block: int, layers: int) -> list[int]:
    """How a block is called at any depth; none in the middle has to be looked at."""
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
