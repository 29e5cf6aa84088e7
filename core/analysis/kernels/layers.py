"""Modules as a tree of rows, and layers that are alike as one of them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum

import msgspec

from ...record.record import KernelRow

ODD_SHARE = 0.10
ODD_DEVIATIONS = 5
"""A layer is the odd one out when its time is farther from the median of its siblings than
this share of it and than so many scaled median absolute deviations."""

DEEPEST = 40
"""Levels of modules: in a hostile trace they nest without end."""

NUMBERED = re.compile(r"(?P<stem>|.*_)(?P<number>\d{1,9})")
ANY_LAYER = "*"
"""The number of layers whose rows were folded before."""

MOST_RANGES = 4


class LayerSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How the times of folded layers lie: per layer and step. ``slowest`` is a number."""

    count: int
    median_ns: float
    min_ns: float
    max_ns: float
    slowest: int


@dataclass(slots=True)
class Branch:
    """A module: its own rows, and the modules in it. Folded layers are one branch.

    ``paths`` are the modules that it stands for.
    """

    paths: list[str] = field(default_factory=list)
    rows: list[KernelRow] = field(default_factory=list)
    below: dict[str, Branch] = field(default_factory=dict)

    def all_rows(self) -> Iterator[KernelRow]:
        """Own rows and those of every module below."""
        yield from self.rows
        for child in self.below.values():
            yield from child.all_rows()

    @property
    def time_ns(self) -> float:
        """Time of all rows."""
        return fsum(row.exclusive_ns for row in self.all_rows())

    @property
    def shape(self) -> Hashable:
        """Equal for modules that hold the same modules and run the same operators."""
        below = tuple(sorted((name, child.shape) for name, child in self.comparable.items()))
        return tuple(sorted({row.op for row in self.rows})), below

    @property
    def comparable(self) -> dict[str, Branch]:
        """The modules below under names that do not depend on the layer.

        The profiler's own ranges number a class through the whole model: ``Linear_7`` is then
        the first ``Linear`` of its layer, here ``Linear_*`` or, of several, ``Linear_*1``.
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
class Part:
    """Something to show below a module: one module, or layers that are alike."""

    name: str
    branch: Branch
    layers: LayerSpread | None = None


def grown(rows: Iterable[KernelRow], root: str) -> Branch:
    """The modules of the rows, one in another; ``root`` is the path of the outermost."""
    trunk = Branch(paths=[root])
    for row in rows:
        branch, path = trunk, ""
        for name in row.module.split(".", DEEPEST) if row.module != root else ():
            path = f"{path}.{name}" if path else name
            branch = branch.below.setdefault(name, Branch(paths=[path]))
        branch.rows.append(row)
    return trunk


def parts(branch: Branch) -> Iterator[Part]:
    """What is directly below a module, layers folded.

    A module that only holds layers, such as a list of blocks, gives way to them:
    ``blocks.0–35`` stands where ``blocks`` was.
    """
    for part in folded(branch.below):
        inner = part.branch
        if inner.below and not inner.rows and all(map(_is_layer, inner.below)):
            for layer in folded(inner.below):
                yield Part(f"{part.name}.{layer.name}", layer.branch, layer.layers)
        else:
            yield part


def _is_layer(name: str) -> bool:
    return name == ANY_LAYER or NUMBERED.fullmatch(name) is not None


def folded(below: Mapping[str, Branch]) -> Iterator[Part]:
    """Siblings by name; those whose names end in a number and that are alike as one."""
    groups: dict[tuple[str, Hashable], dict[int, Branch]] = {}
    for name, branch in below.items():
        match = NUMBERED.fullmatch(name)
        if match is None:
            yield Part(name, branch)
        else:
            group = groups.setdefault((match["stem"], branch.shape), {})
            group[int(match["number"])] = branch
    for (stem, _), group in groups.items():
        odd = odd_ones({number: branch.time_ns for number, branch in group.items()})
        for number in odd:
            yield Part(f"{stem}{number}", group.pop(number))
        yield _as_one(stem, group)


def odd_ones(times: Mapping[int, float]) -> list[int]:
    """Numbers of the layers that are farther from the median than siblings should be."""
    if len(times) < 3:
        return []
    median = statistics.median(times.values())
    spread = 1.4826 * statistics.median(abs(time - median) for time in times.values())
    limit = max(ODD_SHARE * median, ODD_DEVIATIONS * spread)
    return [number for number, time in times.items() if abs(time - median) > limit]


def _as_one(stem: str, group: Mapping[int, Branch]) -> Part:
    if len(group) == 1:
        ((number, branch),) = group.items()
        return Part(f"{stem}{number}", branch)
    times = {number: branch.time_ns for number, branch in group.items()}
    spread = LayerSpread(
        count=len(times),
        median_ns=statistics.median(times.values()),
        min_ns=min(times.values()),
        max_ns=max(times.values()),
        slowest=max(times, key=times.__getitem__),
    )
    return Part(f"{stem}{ranges(sorted(group))}", merged(group.values()), spread)


def merged(branches: Iterable[Branch]) -> Branch:
    """Modules of one shape as one, level by level."""
    whole = Branch()
    below: dict[str, list[Branch]] = {}
    for branch in branches:
        whole.paths += branch.paths
        whole.rows += branch.rows
        for name, child in branch.comparable.items():
            below.setdefault(name, []).append(child)
    whole.below = {name: merged(children) for name, children in below.items()}
    return whole


def ranges(numbers: list[int]) -> str:
    """Ascending numbers in short: ``0–16,18–35``."""
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
