"""The tree of a traced step: model, layer, module, operator, kernel; leaves sum to the step.

Cutting by depth or share keeps the sum: hidden children become one row or none.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Literal, TypeVar

import msgspec

from sysbench.core.record.record import KernelRow, Kernels, Memory, ModuleMemory
from sysbench.core.trace.classify import GRAD_ACCUMULATE, LOSS, MODEL_PHASES, WHOLE_MODEL

ODD_SHARE = 0.10
ODD_DEVIATIONS = 5
"""A layer is an outlier if its time differs from the median of its siblings by more than this share
and by more than this number of scaled median absolute deviations."""
MIN_LAYERS = 3
NORMAL_SCALE = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

MAX_DEPTH = 40
"""Limit against hostile traces with endless nesting."""

NUMBERED = re.compile(r"(?P<stem>|.*_)(?P<number>\d{1,9})")
ANY_LAYER = "*"

LAYER_NUMBER = re.compile(r"(?<=[._])\d+(?=\.|$)")

MAX_RANGES = 4


Item = TypeVar("Item")
Key = TypeVar("Key")


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: defaultdict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def sum_by(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Sum the number of each key, the largest sum first."""
    sums: defaultdict[Key, float] = defaultdict(int)
    for key, number in pairs:
        sums[key] += number
    return {key: sums[key] for key in sorted(sums, key=sums.__getitem__, reverse=True)}


def fold_layer_numbers(module: str) -> str:
    """Replace layer numbers: ``blocks.3.attention`` becomes ``blocks.*.attention``."""
    return LAYER_NUMBER.sub(ANY_LAYER, module)


class LayerSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Times of folded layers per layer and step; ``slowest`` is a layer number."""

    count: int
    median_ns: float
    min_ns: float
    max_ns: float
    slowest: int


@dataclass(slots=True)
class LayerBranch:
    """A module with its rows and submodules; folded layers are one branch with several paths."""

    paths: list[str] = field(default_factory=list)
    rows: list[KernelRow] = field(default_factory=list)
    below: dict[str, LayerBranch] = field(default_factory=dict)

    def all_rows(self) -> Iterator[KernelRow]:
        yield from self.rows
        for child in self.below.values():
            yield from child.all_rows()

    @property
    def time_ns(self) -> float:
        return fsum(row.exclusive_ns for row in self.all_rows())

    @property
    def shape(self) -> Hashable:
        """A key that is equal for modules with equal submodules and operators."""
        below = tuple(sorted((name, child.shape) for name, child in self.comparable.items()))
        return tuple(sorted({row.op for row in self.rows})), below

    @property
    def comparable(self) -> dict[str, LayerBranch]:
        """Submodules under names that do not depend on the layer.

        The profiler numbers the instances of a class in the whole model. If ``Linear_7`` is the
        first ``Linear`` of its layer, its name here is ``Linear_*``, or ``Linear_*1`` if there are
        several.
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
    """A child to show: one module, or similar layers as one."""

    name: str
    branch: LayerBranch
    layers: LayerSpread | None = None


def module_tree(rows: Iterable[KernelRow], root: str) -> LayerBranch:
    trunk = LayerBranch(paths=[root])
    for row in rows:
        branch, path = trunk, ""
        for name in row.module.split(".", MAX_DEPTH) if row.module != root else ():
            path = f"{path}.{name}" if path else name
            branch = branch.below.setdefault(name, LayerBranch(paths=[path]))
        branch.rows.append(row)
    return trunk


def fold_layers(branch: LayerBranch) -> Iterator[LayerGroup]:
    """Yield the children of a module, similar layers folded.

    A module that only contains layers, such as a list of blocks, is replaced by them:
    ``blocks.0–35`` instead of ``blocks``.
    """
    for group in _fold_siblings(branch.below):
        inner = group.branch
        are_layers = all(name == ANY_LAYER or NUMBERED.fullmatch(name) for name in inner.below)
        if inner.below and not inner.rows and are_layers:
            for layers in _fold_siblings(inner.below):
                yield LayerGroup(f"{group.name}.{layers.name}", layers.branch, layers.layers)
        else:
            yield group


def _fold_siblings(below: Mapping[str, LayerBranch]) -> Iterator[LayerGroup]:
    groups: dict[tuple[str, Hashable], dict[int, LayerBranch]] = {}
    for name, branch in below.items():
        match = NUMBERED.fullmatch(name)
        if match is None:
            yield LayerGroup(name, branch)
        else:
            group = groups.setdefault((match["stem"], branch.shape), {})
            group[int(match["number"])] = branch
    for (stem, _), group in groups.items():
        for number in find_outliers({number: branch.time_ns for number, branch in group.items()}):
            yield LayerGroup(f"{stem}{number}", group.pop(number))
        yield _layer_group(stem, group)


def find_outliers(values: Mapping[Key, float], typical: float | None = None) -> list[Key]:
    """Return the layers that are outliers, see `ODD_SHARE`; at least half are not.

    The share is of the ``typical`` time, by default the median of the values.
    """
    if len(values) < MIN_LAYERS:
        return []
    median = statistics.median(values.values())
    spread = NORMAL_SCALE * statistics.median(abs(value - median) for value in values.values())
    limit = max(ODD_SHARE * (median if typical is None else typical), ODD_DEVIATIONS * spread)
    return [layer for layer, value in values.items() if abs(value - median) > limit]


def _layer_group(stem: str, group: Mapping[int, LayerBranch]) -> LayerGroup:
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


def _merged(branches: Iterable[LayerBranch]) -> LayerBranch:
    merged = LayerBranch()
    below: dict[str, list[LayerBranch]] = {}
    for branch in branches:
        merged.paths += branch.paths
        merged.rows += branch.rows
        for name, child in branch.comparable.items():
            below.setdefault(name, []).append(child)
    merged.below = {name: _merged(children) for name, children in below.items()}
    return merged


def ranges(numbers: list[int]) -> str:
    """Abbreviate ascending numbers: ``0–16,18–35``."""
    pieces: list[tuple[int, int]] = []
    for number in numbers:
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in pieces]
    if len(texts) > MAX_RANGES:
        texts = [*texts[: MAX_RANGES - 1], "…", texts[-1]]
    return ",".join(texts)


Kind = Literal[
    "step", "module", "layers", "operator", "kernel", "phase", "idle", "unattributed", "rest"
]

ROOF_KNOWN = 0.9
"""Minimum share of a node's time with a known roof."""

WORK = ("operator", "kernel")
NOT_RUNNING = ("idle", "unattributed")
UNLINKED = "launch not recorded"
STEP_PREFIX = "step/"


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the step with its children, per step.

    Times are exclusive, so the leaves add up to the step; ``exclusive_ns`` excludes submodules.
    ``calls`` counts kernels, on the CPU operators. ``flops`` and ``moved_bytes`` sum the known
    values, null if none is known; ``of_roof`` is weighted by time. ``parameter_bytes`` and
    ``activation_bytes`` (saved for backward) are a module's, from the memory pass.

    ``path`` is unique: the module's path with the numbers of folded layers, then ``/`` and the
    operator, ``/`` and the kernel.
    """

    kind: Kind
    name: str
    path: str
    inclusive_ns: float
    exclusive_ns: float
    share: float
    calls: float | None = None
    flops: float | None = None
    moved_bytes: float | None = None
    of_roof: float | None = None
    phases_ns: dict[str, float] = {}
    parameter_bytes: int | None = None
    activation_bytes: int | None = None
    layers: LayerSpread | None = None
    children: list[TreeNode] = []


def kernel_tree(kernels: Kernels, memory: Memory | None = None, *, phase: str = "") -> TreeNode:
    """Return the step as a tree; similar layers are one node, outliers have their own.

    ``kernels`` have best a row per layer; ``memory`` has the modules' bytes. A ``phase`` keeps only
    its rows, without idle and unattributed time.
    """
    rows = [row for row in kernels.rows if phase in ("", row.phase)]
    module_memory = {module.module: module for module in memory.modules} if memory else {}
    build = _Builder(step_ns=kernels.step_ms * 1e6, module_memory=module_memory)
    children = build.top(rows)
    if not phase:
        causes = [build.idle_node("idle", row.cause, row.ns) for row in kernels.idle]
        idle_ns = fsum(row.ns for row in kernels.idle)
        children += [
            build.idle_node("idle", "idle", idle_ns, causes),
            build.idle_node("unattributed", "unattributed", kernels.unattributed_ns),
        ]
    return build.node("step", phase or kernels.whole, phase or "step", rows, children)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    step_ns: float
    module_memory: Mapping[str, ModuleMemory]

    def share(self, ns: float) -> float:
        return ns / self.step_ns if self.step_ns else 0.0

    def node(
        self,
        kind: Kind,
        name: str,
        path: str,
        rows: Sequence[KernelRow],
        children: Sequence[TreeNode] = (),
        paths: Sequence[str] = (),
        layers: LayerSpread | None = None,
    ) -> TreeNode:
        below = [child.inclusive_ns for child in children]
        # Children hold all the rows. Adding them up, not the rows, makes parent and children
        # agree to the last bit; the step also has children without rows, such as idle.
        ns = fsum(below if below else (row.exclusive_ns for row in rows))
        modules_ns = [child.inclusive_ns for child in children if child.kind not in WORK]
        memory = [self.module_memory[path] for path in paths if path in self.module_memory]
        return TreeNode(
            kind=kind,
            name=name,
            path=path,
            inclusive_ns=ns,
            exclusive_ns=max(0.0, fsum([ns, *(-module_ns for module_ns in modules_ns)])),
            share=self.share(ns),
            calls=fsum(row.calls for row in rows),
            flops=known_sum(row.flops for row in rows),
            moved_bytes=known_sum(row.moved_bytes for row in rows),
            of_roof=mean_of_roof(rows),
            phases_ns={
                phase: fsum(row.exclusive_ns for row in members)
                for phase, members in group_by(rows, lambda row: row.phase).items()
            },
            parameter_bytes=sum(m.parameter_bytes for m in memory) if memory else None,
            activation_bytes=sum(m.activation_bytes for m in memory) if memory else None,
            layers=layers,
            children=_in_order(children),
        )

    def idle_node(
        self, kind: Kind, name: str, ns: float, children: Sequence[TreeNode] = ()
    ) -> TreeNode:
        return TreeNode(
            kind=kind,
            name=name,
            path=f"{STEP_PREFIX}{name}",
            inclusive_ns=ns,
            exclusive_ns=0.0 if children else ns,
            share=self.share(ns),
            children=_in_order(children),
        )

    def top(self, rows: Sequence[KernelRow]) -> list[TreeNode]:
        groups = group_by(rows, place_outside_modules)
        inside = groups.pop("", [])
        nodes = [
            self.node(
                "phase",
                name,
                STEP_PREFIX + name,
                members,
                self.operators(members, STEP_PREFIX + name),
            )
            for name, members in groups.items()
        ]
        if inside:
            model = LayerGroup(WHOLE_MODEL, module_tree(inside, WHOLE_MODEL))
            nodes.append(self.module(WHOLE_MODEL, "", model))
        return nodes

    def module(self, path: str, prefix: str, group: LayerGroup) -> TreeNode:
        branch = group.branch
        below = [
            self.module(f"{prefix}{child.name}", f"{prefix}{child.name}.", child)
            for child in fold_layers(branch)
        ]
        return self.node(
            "layers" if group.layers else "module",
            group.name,
            path,
            list(branch.all_rows()),
            [*below, *self.operators(branch.rows, path)],
            branch.paths,
            group.layers,
        )

    def operators(self, rows: Sequence[KernelRow], place: str) -> list[TreeNode]:
        nodes = []
        for op, members in group_by(rows, lambda row: row.op).items():
            path = f"{place}/{op}"
            kernels = [
                self.node("kernel", name, f"{path}/{name}", calls)
                for name, calls in group_by(members, lambda row: row.name).items()
            ]
            if not op:
                nodes += kernels
            elif [kernel.name for kernel in kernels] == [op]:
                nodes.append(self.node("operator", op, path, members))
            else:
                nodes.append(self.node("operator", op, path, members, kernels))
        return nodes


def place_outside_modules(row: KernelRow) -> str:
    """Return the node name for a row outside all modules, else an empty string."""
    if not row.linked:
        return UNLINKED
    if row.module in (LOSS, GRAD_ACCUMULATE):
        return row.module
    if row.module:
        return ""
    return f"{row.phase} (no module)" if row.phase in MODEL_PHASES else row.phase


def _in_order(nodes: Iterable[TreeNode]) -> list[TreeNode]:
    return sorted(nodes, key=lambda node: (node.kind in NOT_RUNNING, -node.inclusive_ns))


def known_sum(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return fsum(known_values) if known_values else None


def mean_of_roof(rows: Sequence[KernelRow]) -> float | None:
    """Return the time-weighted share of the roof, or None if too little of it is known."""
    parts = [(row.total_ns, row.of_roof) for row in rows if row.of_roof is not None]
    known_ns = fsum(ns for ns, _ in parts)
    if not known_ns or known_ns < ROOF_KNOWN * fsum(row.total_ns for row in rows):
        return None
    return fsum(ns * reached for ns, reached in parts) / known_ns


def walk(node: TreeNode, depth: int = 0) -> Iterator[tuple[int, TreeNode]]:
    yield depth, node
    for child in node.children:
        yield from walk(child, depth + 1)


def to_depth(node: TreeNode, depth: int) -> TreeNode:
    below = [to_depth(child, depth - 1) for child in node.children] if depth > 0 else []
    return msgspec.structs.replace(node, children=below)


def from_share(node: TreeNode, least: float) -> TreeNode:
    """Merge children below this share of the step into one; idle time stays."""
    children = [from_share(child, least) for child in node.children]
    ran = [child for child in children if child.kind not in NOT_RUNNING]
    not_running = [child for child in children if child.kind in NOT_RUNNING]
    large = [child for child in ran if child.share >= least]
    small = [child for child in ran if child.share < least]
    rest = [_rest(node, small)] if len(small) > 1 else small
    return msgspec.structs.replace(node, children=[*large, *rest, *not_running])


def matching(node: TreeNode, fits: Callable[[str], object]) -> TreeNode | None:
    """Return the nodes with a matching path, complete, and their ancestors, or None.

    Ancestors keep their values, which may exceed the sum of their remaining children.
    """
    if fits(node.path):
        return node
    below = [match for child in node.children if (match := matching(child, fits)) is not None]
    return msgspec.structs.replace(node, children=below) if below else None


def _rest(parent: TreeNode, small: Sequence[TreeNode]) -> TreeNode:
    ns = fsum(child.inclusive_ns for child in small)
    phases = dict.fromkeys(phase for child in small for phase in child.phases_ns)
    return TreeNode(
        kind="rest",
        name=f"({len(small)} more)",
        path=f"{parent.path}/({len(small)} more)",
        inclusive_ns=ns,
        exclusive_ns=ns,
        share=fsum(child.share for child in small),
        calls=fsum(child.calls or 0.0 for child in small),
        flops=known_sum(child.flops for child in small),
        moved_bytes=known_sum(child.moved_bytes for child in small),
        phases_ns={
            phase: fsum(child.phases_ns.get(phase, 0.0) for child in small) for phase in phases
        },
    )
