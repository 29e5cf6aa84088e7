"""Difference of two runs, two files, or a run and a file, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sysbench.core.compare.nodes import (
    ByteNode,
    Difference,
    Kind,
    StepChange,
    TimeNode,
    differs,
    in_order,
    name_sides,
    pair_by,
    walk_nodes,
)
from sysbench.core.compare.times import levels_of, time_difference
from sysbench.core.compare.verdict import Verdict, headline
from sysbench.core.formatting import counted, format_bytes, shortened, signed_percent
from sysbench.core.memory.peak_difference import OriginPair, by_code, pair_origins, stack_of
from sysbench.core.record.record import Kernels, Memory, Record
from sysbench.core.record.steps import StepRow
from sysbench.core.trace.classify import fused_operators
from sysbench.core.trace.module_tree import UNLINKED, group_by

EXPLAINED = 0.5
"""Minimum share of the change that the named parts explain."""
OPPOSING = 0.1
"""Share of the sum of all changes from which an opposing change is named."""
NAMES_SHOWN = 2
LONGEST_NAME = 48
NOT_TESTED = "One traced process each: not tested."
UNTRACED = "the rows are of the traced step; the untraced one changed by"


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    nodes: Sequence[TimeNode]

    @property
    def change(self) -> int:
        return sum(node.change for node in self.nodes)


AnyPart = TypeVar("AnyPart", _Group, ByteNode)


def time_summary(root: TimeNode) -> list[str]:
    """Summarize the change of the traced step in three lines; they call no difference significant.

    The first names the biggest changes in the direction of the total that make up half of it:
    categories, or modules if those are fewer. The second is on idle time. The third has the sum of
    all other rows and the unexplained rest. One line if nothing differs.
    """
    if not differs(root):
        return [f"The traced {root.name} is the same in every row: {format_ns(root.a_ns)}."]
    idle = _Group("idle", [node for node in root.children if node.kind == "idle"])
    work = [node for node in root.children if node.kind == "category"]
    by_category = [_Group(node.name, [node]) for node in work]
    modules = [child for node in work for child in node.children if child.kind == "module"]
    by_module = [
        _Group(name, nodes) for name, nodes in group_by(modules, lambda node: node.name).items()
    ]
    choices = [
        (groups, _leading([*groups, idle], root.change)) for groups in (by_category, by_module)
    ]
    # Of equally short choices the one that explains more; categories first.
    groups, named = min(
        (choice for choice in choices if choice[1]),
        key=lambda choice: (len(choice[1]), -abs(sum(group.change for group in choice[1]))),
        default=(by_category, []),
    )
    against = _opposing(groups, root.change)
    others = root.change - idle.change - sum(part.change for part in named if part is not idle)
    return [_biggest(root, named, against), _idle(root, idle), _left(root, others)]


def memory_summary(root: ByteNode) -> str:
    if not root.change:
        same = f"The {root.name} did not change: {format_bytes(root.a_bytes)} on both sides"
        biggest = max(root.children, key=lambda node: abs(node.change), default=root)
        return f"{same}{', but ' + _bytes(biggest) if biggest.change else ''}."
    text = "; ".join(map(_bytes, _leading(root.children, root.change)))
    against = _opposing(root.children, root.change)
    if against:
        text += f"; against it {_bytes(against)}"
    sizes = f"{format_bytes(root.a_bytes)} to {format_bytes(root.b_bytes)}"
    return f"{root.name.capitalize()} {signed_bytes(root.change)} ({sizes}): {text}."


def _leading(parts: Sequence[AnyPart], change: int) -> list[AnyPart]:
    """The biggest parts in the direction of the change that together make up half of it."""
    chosen: list[AnyPart] = []
    for part in sorted(parts, key=lambda part: -part.change if change > 0 else part.change):
        if part.change * change <= 0:
            break
        chosen.append(part)
        if sum(part.change for part in chosen) / change >= EXPLAINED:
            break
    return chosen


def _opposing(parts: Sequence[AnyPart], change: int) -> AnyPart | None:
    opposite = [part for part in parts if part.change * change < 0]
    against = max(opposite, key=lambda part: abs(part.change), default=None)
    if against and abs(against.change) >= OPPOSING * sum(abs(part.change) for part in parts):
        return against
    return None


def _biggest(root: TimeNode, named: Sequence[_Group], against: _Group | None) -> str:
    if not root.change:
        return f"The traced {root.name} did not change: {format_ns(root.a_ns)} on both sides."
    text = "; ".join(
        f"{shortened(part.name)} {signed(part.change)}{_events(part)}" for part in named
    )
    if against:
        text += f"; against it {against.name} {signed(against.change)}{_events(against)}"
    whole = f"{signed(root.change)} ({format_ns(root.a_ns)} to {format_ns(root.b_ns)})"
    return f"Traced {root.name} {whole}: {text}."


def _events(group: _Group) -> str:
    texts = []
    for state in ("gone", "new"):
        leaves = [
            node
            for root in group.nodes
            for _, node in walk_nodes(root)
            if not node.children and node.state == state
        ]
        made = [node for node in leaves if fused_operators(node.name)]
        if len(made) < len(leaves):
            rows = counted(len(leaves) - len(made), "row")
            texts.append(f"{rows} {state}: {_names(group, state)}")
        if made:
            texts.append(f"{counted(len(made), 'generated kernel')} {state}")
    return f" ({'; '.join(texts)})" if texts else ""


def _names(group: _Group, state: str) -> str:
    """The operators with most of the time that is only on one side; kernels without one."""
    outermost = [node for root in group.nodes for node in _outermost(root, state)]
    totals = {
        name: sum(abs(node.change) for node in nodes)
        for name, nodes in group_by(outermost, lambda node: node.name).items()
    }
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    names = list(dict.fromkeys(shortened(name, LONGEST_NAME) for name in ranked))
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{shown} …" if len(names) > NAMES_SHOWN else shown


def _outermost(node: TimeNode, state: str) -> Iterator[TimeNode]:
    if node.state == state and node.kind in ("operator", "kernel"):
        if not fused_operators(node.name):
            yield node
        return
    for child in node.children:
        yield from _outermost(child, state)


def _idle(root: TimeNode, idle: _Group) -> str:
    causes = [cause for node in idle.nodes for cause in node.children if cause.change]
    text = f"Idle {signed(idle.change)}"
    if len(causes) > 1:
        text += f": {', '.join(f'{cause.name} {signed(cause.change)}' for cause in causes)}"
    communication = [node for node in root.children if node.name == "communication"]
    if communication:
        text += f". Communication {signed(communication[0].change)}"
    return f"{text}."


def _left(root: TimeNode, others: int) -> str:
    unexplained = [node for node in root.children if node.kind in ("unattributed", "rest")]
    unexplained += [
        node for _, node in walk_nodes(root) if node.kind == "module" and node.name == UNLINKED
    ]
    text = f"All other rows {signed(others)}."
    if unexplained:
        change = signed(sum(node.change for node in unexplained))
        text += f" {change} of the total is unattributed or from unrecorded launches."
    return f"{text} {NOT_TESTED}"


def _bytes(node: ByteNode) -> str:
    return f"{node.name} {signed_bytes(node.change)}"


def signed(ns: int) -> str:
    return f"{ns / 1e6:+.3f} ms"


def format_ns(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"


def signed_bytes(count: int) -> str:
    return f"{'+' if count >= 0 else ''}{format_bytes(count)}"


UNLISTED = "smaller allocations, and those without a stack"
UNACCOUNTED = "not in the ledger"
NO_PHASE = "outside of all phases"
NO_STACK = "stack not recorded"
FRAMES_SHOWN = 2

Sizes = tuple[int | None, int | None]
"""Bytes of A and of B; None on a side that has no such row."""


def memory_difference_tree(a: Memory, b: Memory) -> ByteNode:
    """Compare the peak of B with A's, in bytes.

    Categories are the rows of the two ledgers, including rounding to the allocator's blocks; below
    are the phases in which the memory was requested, and the stacks, matched by `pair_origins`.
    Bytes of a category outside its listed stacks are a separate row, so that every level adds up.
    """
    is_state = a.is_state or b.is_state
    a, b = by_code(a), by_code(b)
    ledger_a, ledger_b = (
        {row.name: row.bytes for row in side.ledger if row.bytes} for side in (a, b)
    )
    origins = pair_by(a.origins, b.origins, lambda origin: origin.category)
    categories = []
    for name in dict.fromkeys([*ledger_a, *ledger_b]):
        phases = pair_by(*origins.get(name, ([], [])), lambda origin: origin.phase)
        below = [_phase(phase or NO_PHASE, sides) for phase, sides in phases.items()]
        sizes = ledger_a.get(name), ledger_b.get(name)
        rest = _rest(UNLISTED, sizes, below) if below else []
        categories.append(_node("category", name, sizes, children=[*below, *rest]))
    peaks = a.peak_allocated_bytes, b.peak_allocated_bytes
    rest = _rest(UNACCOUNTED, peaks, categories)
    name = "allocated memory" if is_state else "peak"
    return _node("peak", name, peaks, children=[*categories, *rest])


def _rest(name: str, sizes: Sizes, children: Sequence[ByteNode]) -> list[ByteNode]:
    a_rest = (sizes[0] or 0) - sum(child.a_bytes for child in children)
    b_rest = (sizes[1] or 0) - sum(child.b_bytes for child in children)
    return [_node("rest", name, (a_rest, b_rest))] if a_rest or b_rest else []


def _phase(name: str, sides: OriginPair) -> ByteNode:
    stacks = []
    for pair in pair_origins(*sides):
        stack = stack_of(pair)
        node = _node("stack", " < ".join(stack[:FRAMES_SHOWN]) or NO_STACK, _sizes(pair), pair)
        stacks.append(msgspec.structs.replace(node, stack=stack))
    return _node("phase", name, _sizes(sides), sides, children=stacks)


def _sizes(sides: OriginPair) -> Sizes:
    a, b = (sum(origin.bytes for origin in side) if side else None for side in sides)
    return a, b


def _node(
    kind: Kind,
    name: str,
    sizes: Sizes,
    sides: OriginPair | None = None,
    *,
    children: Sequence[ByteNode] = (),
) -> ByteNode:
    a_bytes, b_bytes = sizes
    name, state, _ = name_sides(
        None if a_bytes is None else name, None if b_bytes is None else name
    )
    blocks = [sum(origin.blocks for origin in side) for side in sides] if sides else [None, None]
    return ByteNode(
        kind=kind,
        name=name,
        state=state,
        a_bytes=a_bytes or 0,
        b_bytes=b_bytes or 0,
        a_blocks=blocks[0],
        b_blocks=blocks[1],
        children=in_order(children),
    )


@dataclass(frozen=True, slots=True)
class DifferenceSide:
    record: Record
    layers: Kernels | None = None

    @property
    def kernels(self) -> Kernels | None:
        if self.layers or self.record.kernels:
            return self.layers or self.record.kernels
        return self.record.nsys.kernels if self.record.nsys else None


def difference(a: DifferenceSide, b: DifferenceSide) -> Difference:
    missing = {}
    time = memory = None
    summary: list[str] = []
    notes: list[str] = []
    if a.kernels and b.kernels:
        time = time_difference(a.kernels, b.kernels)
        summary += time_summary(time)
        notes += _notes(a.kernels, b.kernels, a.record, b.record)
    else:
        missing["time"] = _without("trace pass", a, a.kernels, b.kernels)
    if a.record.memory and b.record.memory:
        memory = memory_difference_tree(a.record.memory, b.record.memory)
        summary.append(memory_summary(memory))
    else:
        missing["memory"] = _without("memory pass", a, a.record.memory, b.record.memory)
    return Difference(
        summary=summary,
        time=time,
        memory=memory,
        notes=notes,
        missing=missing,
        steps=_steps(a.kernels, b.kernels),
    )


def under_verdict(difference: Difference, a: Record, b: Record, verdict: Verdict) -> Difference:
    """Let the summary start with the reason why the rows explain no change, if there is one."""
    sentence = unexplained(difference.time, a, b, verdict)
    if not sentence:
        return difference
    of_memory = difference.summary[-1:] if difference.memory else []
    return msgspec.structs.replace(
        difference,
        summary=[sentence, *of_memory],
        notes=[note for note in difference.notes if not note.startswith(UNTRACED)],
        unexplained=sentence,
    )


def unexplained(time: TimeNode | None, a: Record, b: Record, verdict: Verdict) -> str:
    """Say that the traced step does not explain the change of the untraced one, or return "".

    It does not if that is zero or has the opposite sign, or if the verdict has an interval and no
    difference.
    """
    if time is None or a.timing is None or b.timing is None or verdict.change is None:
        return ""
    untraced_ms = b.timing.step.median_ms - a.timing.step.median_ms
    changes = f"Traced {signed(time.change)}, untraced {untraced_ms:+.3f} ms"
    if verdict.verdict in ("same", "not decidable") and verdict.low is not None:
        return (
            f"{changes} ({headline(verdict)}): no change was found that these rows could explain."
        )
    if time.change and time.change * untraced_ms <= 0:
        return f"{changes}: the trace does not explain this change."
    return ""


def _kinds(side: Kernels) -> dict[str, int]:
    """Number of marked steps by kind; empty if no kind is known or the rows are not per step."""
    rows = side.marked_steps.rows if side.marked_steps else []
    kinds = {kind: len(steps) for kind, steps in group_by(rows, lambda row: row.kind).items()}
    return kinds if any(kinds) and side.whole == "step" else {}


def _shares(kinds: Mapping[str, int]) -> dict[str, float]:
    return {kind: count / sum(kinds.values()) for kind, count in kinds.items()}


def _steps(a: Kernels | None, b: Kernels | None) -> list[StepChange]:
    a_rows, b_rows = (_steps_with_work(side) if side else [] for side in (a, b))
    if not a_rows or not b_rows:
        return []
    changes = []
    for kind, sides in pair_by(a_rows, b_rows, lambda row: row.kind).items():
        a_steps, b_steps = _by_number(*sides)
        for key in sorted(a_steps.keys() | b_steps.keys()):
            changes.append(_step(kind, a_steps.get(key), b_steps.get(key)))
    return changes


def _steps_with_work(side: Kernels) -> list[StepRow]:
    rows = side.marked_steps.rows if side.marked_steps else []
    return [row for row in rows if not row.is_empty]


def _by_number(a: list[StepRow], b: list[StepRow]) -> list[dict[int, StepRow]]:
    """Steps by their number, or by their place if no number is on both sides."""
    numbered = [{row.number or 0: row for row in side} for side in (a, b)]
    is_unique = all(map(lambda rows, side: len(rows) == len(side), numbered, (a, b)))
    if is_unique and not numbered[0].keys().isdisjoint(numbered[1]):
        return numbered
    return [dict(enumerate(side)) for side in (a, b)]


def _step(kind: str, a: StepRow | None, b: StepRow | None) -> StepChange:
    return StepChange(
        kind=kind,
        a_number=a.number if a else None,
        b_number=b.number if b else None,
        a_ns=a.ns if a else None,
        b_ns=b.ns if b else None,
        a_busy_ns=a.busy_ns if a else None,
        b_busy_ns=b.busy_ns if b else None,
        a_kernels=a.kernels if a else None,
        b_kernels=b.kernels if b else None,
    )


def _without(what: str, side: DifferenceSide, a: object, b: object) -> str:
    if a is None and b is None:
        if side.record.spec:
            return f"neither run has a {what}"
        return f"neither file has {'kernels' if what == 'trace pass' else 'memory requests'}"
    return f"{'A' if a is None else 'B'} has no {what}"


def _notes(a: Kernels, b: Kernels, *records: Record) -> Iterator[str]:
    yield from levels_of(a, b).notes
    if a.source != b.source:
        yield f"A's rows are {a.source}, B's are {b.source}: the same work has different names"
    if a.whole != b.whole:
        yield f"A is a {a.whole}, B a {b.whole}, with an unknown number of steps"
    elif a.whole == "span":
        yield "both are spans with an unknown number of steps"
    for name, side in (("A", a), ("B", b)):
        rows = side.marked_steps.rows if side.marked_steps else []
        if empty := len(rows) - len(_steps_with_work(side)):
            yield (
                f"{empty:,} of {name}'s {len(rows):,} marked steps are without work: its steps are "
                "compared without them, its rows are means over all"
            )
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    if kinds_a and kinds_b and _shares(kinds_a) != _shares(kinds_b):
        a_words, b_words = (
            ", ".join(f"{count} {kind or 'other'}" for kind, count in kinds.items())
            for kinds in (kinds_a, kinds_b)
        )
        yield f"A is the mean of {a_words}, B of {b_words}: the rows compare unlike steps"
    slowed = [
        f"{name} by {signed_percent(kernels.perturbation - 1)}"
        for name, kernels in (("A", a), ("B", b))
        if kernels.perturbation is not None
    ]
    if slowed:
        yield f"tracing changed the step of {' and of '.join(slowed)}"
    medians = [record.timing.step.median_ms for record in records if record.timing]
    if len(medians) == len(records):
        change_ms = medians[1] - medians[0]
        yield f"{UNTRACED} {change_ms:+.3f} ms"
