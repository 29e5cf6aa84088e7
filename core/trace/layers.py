"""The tree of modules with their rows, and similar layers folded into one group."""

from __future__ import annotations

import re
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum

import msgspec

from sysbench.core.record.record import KernelRow

ODD_SHARE = 0.10
ODD_DEVIATIONS = 5
"""A layer is an outlier when its time differs from the median of its siblings by more than this
share of the median and by more than this many scaled median absolute deviations."""

DEEPEST = 40
"""Levels of modules; in a hostile trace they nest without end."""

NUMBERED = re.compile(r"(?P<stem>|.*_)(?P<number>\d{1,9})")
ANY_LAYER = "*"
"""Stands for a layer's number where the rows were folded before."""

LAYER_NUMBER = re.compile(r"(?<=[._])\d+(?=\.|$)")

MOST_RANGES = 4


def fold_layer_numbers(module: str) -> str:
    """``blocks.3.attention`` to ``blocks.*.attention``."""
    return LAYER_NUMBER.sub(ANY_LAYER, module)


class LayerSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Times of folded layers, per layer and step; ``slowest`` is the number of a layer."""

    count: int
    median_ns: float
    min_ns: float
    max_ns: float
    slowest: int


@dataclass(slots=True)
class Branch:
    """A module with its rows and the modules in it; folded layers are one branch.

    ``paths`` are those of the modules that the branch stands for.
    """

    paths: list[str] = field(default_factory=list)
    rows: list[KernelRow] = field(default_factory=list)
    below: dict[str, Branch] = field(default_factory=dict)

    def all_rows(self) -> Iterator[KernelRow]:
        """The rows of the module and of every module below."""
        yield from self.rows
        for child in self.below.values():
            yield from child.all_rows()

    @property
    def time_ns(self) -> float:
        """Exclusive nanoseconds of all rows, per step."""
        return fsum(row.exclusive_ns for row in self.all_rows())

    @property
    def shape(self) -> Hashable:
        """A key that is equal for modules with the same modules in them and the same operators."""
        below = tuple(sorted((name, child.shape) for name, child in self.comparable.items()))
        return tuple(sorted({row.op for row in self.rows})), below

    @property
    def comparable(self) -> dict[str, Branch]:
        """The modules below under names that do not depend on the layer.

        The profiler's ranges number a class through the whole model. If ``Linear_7`` is the
        first ``Linear`` of its layer, its name here is ``Linear_*``, or ``Linear_*1`` if the
        layer has several.
        """
        classes: dict[str, list[tuple[int, str]]] = {}
        for name in self.below:
            if (match := NUMBERED.fullmatch(name)) and match["stem"]:
                classes.setdefault(match["stem"], []).append((int(match["number"]), name))
        names = {name: name for name in self.below}
        for stem, members in classes.items():
            for rank, (_, name) in enumerate(sorted(members), 1):
                names[name] = f"{stem}{ANY_LAYER}{rank if len(members) > 1 else ''}"
        return {names[name]: child for name, child in self.below.items()}


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A child to show below a module: one module, or similar layers as one."""

    name: str
    branch: Branch
    layers: LayerSpread | None = None


def module_tree(rows: Iterable[KernelRow], root: str) -> Branch:
    """The modules of the rows as a tree; ``root`` is the path of the outermost."""
    trunk = Branch(paths=[root])
    for row in rows:
        branch, path = trunk, ""
        for name in row.module.split(".", DEEPEST) if row.module != root else ():
            path = f"{path}.{name}" if path else name
            branch = branch.below.setdefault(name, Branch(paths=[path]))
        branch.rows.append(row)
    return trunk


def fold_layers(branch: Branch) -> Iterator[LayerGroup]:
    """The children of a module, similar layers folded.

    A module that only contains layers, such as a list of blocks, is replaced by them:
    ``blocks.0–35`` instead of ``blocks``.
    """
    for group in _fold_siblings(branch.below):
        inner = group.branch
        if inner.below and not inner.rows and all(map(_is_layer, inner.below)):
            for layers in _fold_siblings(inner.below):
                yield LayerGroup(f"{group.name}.{layers.name}", layers.branch, layers.layers)
        else:
            yield group


def _is_layer(name: str) -> bool:
    return name == ANY_LAYER or NUMBERED.fullmatch(name) is not None


def _fold_siblings(below: Mapping[str, Branch]) -> Iterator[LayerGroup]:
    """Siblings by name; those with a number and equal shape as one, but for the outliers."""
    groups: dict[tuple[str, Hashable], dict[int, Branch]] = {}
    for name, branch in below.items():
        match = NUMBERED.fullmatch(name)
        if match is None:
            yield LayerGroup(name, branch)
        else:
            group = groups.setdefault((match["stem"], branch.shape), {})
            group[int(match["number"])] = branch
    for (stem, _), group in groups.items():
        # At least half stay in the group: their deviation is at most the median one.
        for number in odd_ones({number: branch.time_ns for number, branch in group.items()}):
            yield LayerGroup(f"{stem}{number}", group.pop(number))
        yield _layer_group(stem, group)


def odd_ones(times: Mapping[int, float]) -> list[int]:
    """Numbers of the layers that are outliers by time, see `ODD_SHARE`; none below three."""
    if len(times) < 3:
        return []
    median = statistics.median(times.values())
    spread = 1.4826 * statistics.median(abs(time - median) for time in times.values())
    limit = max(ODD_SHARE * median, ODD_DEVIATIONS * spread)
    return [number for number, time in times.items() if abs(time - median) > limit]


def _layer_group(stem: str, group: Mapping[int, Branch]) -> LayerGroup:
    if len(group) == 1:
        ((number, branch),) = group.items()
        return LayerGroup(f"{stem}{number}", branch)
    times = {number: branch.time_ns for number, branch in group.items()}
    spread = LayerSpread(
        count=len(times),
        median_ns=statistics.median(times.values()),
        min_ns=min(times.values()),
        max_ns=max(times.values()),
        slowest=max(times, key=times.__getitem__),
    )
    return LayerGroup(f"{stem}{ranges(sorted(group))}", _merged(group.values()), spread)


def _merged(branches: Iterable[Branch]) -> Branch:
    """Modules of one shape as one branch, level by level."""
    merged = Branch()
    below: dict[str, list[Branch]] = {}
    for branch in branches:
        merged.paths += branch.paths
        merged.rows += branch.rows
        for name, child in branch.comparable.items():
            below.setdefault(name, []).append(child)
    merged.below = {name: _merged(children) for name, children in below.items()}
    return merged


def ranges(numbers: list[int]) -> str:
    """Ascending numbers abbreviated: ``0–16,18–35``."""
    pieces: list[tuple[int, int]] = []
    for number in numbers:
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in pieces]
    if len(texts) > MOST_RANGES:
        texts = [*texts[: MOST_RANGES - 1], "…", texts[-1]]
    return ",".join(texts)
