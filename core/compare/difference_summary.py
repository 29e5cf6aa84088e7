"""A difference in three lines: its biggest parts, idle time, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sysbench.core.compare.nodes import ByteNode, TimeNode, differs, group_by, walk
from sysbench.core.formatting import counted, format_bytes, shortened
from sysbench.core.trace.classify import fused_operators
from sysbench.core.trace.module_tree import UNLINKED

EXPLAINED = 0.5
"""Part of the change that the named parts make up at least."""
OPPOSING = 0.1
"""Part of the sum of all changes from which on one in the other direction is named."""
NAMES_SHOWN = 2
LONGEST_NAME = 48
NOT_TESTED = "One traced process each: not tested."


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows under one name: a category, or a module in all its categories."""

    name: str
    nodes: Sequence[TimeNode]

    @property
    def change(self) -> int:
        return sum(node.change for node in self.nodes)


AnyPart = TypeVar("AnyPart", _Group, ByteNode)


def time_summary(root: TimeNode) -> list[str]:
    """Three lines on the change of the traced step; they call no difference real.

    The first names the biggest changes in the direction of the whole that make up half of the
    whole: categories, or modules where those are fewer. The second is on idle time. The third
    has the sum of all other rows, and what no row explains. One line where nothing differs.
    """
    if not differs(root):
        return [f"The traced {root.name} is the same in every row: {milliseconds(root.a_ns)}."]
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
    """One line on the change of the peak: the biggest rows that make up half of the change."""
    if not root.change:
        same = f"The peak did not change: {format_bytes(root.a_bytes)} on both sides"
        biggest = max(root.children, key=lambda node: abs(node.change), default=root)
        return f"{same}{', but ' + _bytes(biggest) if biggest.change else ''}."
    text = "; ".join(map(_bytes, _leading(root.children, root.change)))
    against = _opposing(root.children, root.change)
    if against:
        text += f"; against it {_bytes(against)}"
    sizes = f"{format_bytes(root.a_bytes)} to {format_bytes(root.b_bytes)}"
    return f"Peak {signed_bytes(root.change)} ({sizes}): {text}."


def _leading(parts: Sequence[AnyPart], change: int) -> list[AnyPart]:
    """The biggest parts in the direction of the change that together make up its half."""
    chosen: list[AnyPart] = []
    for part in sorted(parts, key=lambda part: -part.change if change > 0 else part.change):
        if part.change * change <= 0:
            break
        chosen.append(part)
        if sum(part.change for part in chosen) / change >= EXPLAINED:
            break
    return chosen


def _opposing(parts: Sequence[AnyPart], change: int) -> AnyPart | None:
    """The biggest part in the other direction, where it is large among all changes."""
    opposite = [part for part in parts if part.change * change < 0]
    against = max(opposite, key=lambda part: abs(part.change), default=None)
    if against and abs(against.change) >= OPPOSING * sum(abs(part.change) for part in parts):
        return against
    return None


def _biggest(root: TimeNode, named: Sequence[_Group], against: _Group | None) -> str:
    if not root.change:
        return f"The traced {root.name} did not change: {milliseconds(root.a_ns)} on both sides."
    text = "; ".join(
        f"{shortened(part.name)} {signed(part.change)}{_events(part)}" for part in named
    )
    if against:
        text += f"; against it {against.name} {signed(against.change)}{_events(against)}"
    whole = f"{signed(root.change)} ({milliseconds(root.a_ns)} to {milliseconds(root.b_ns)})"
    return f"Traced {root.name} {whole}: {text}."


def _events(group: _Group) -> str:
    """The kernels or operators that are only on one side, in parentheses."""
    texts = []
    for state in ("gone", "new"):
        leaves = [
            node
            for root in group.nodes
            for _, node in walk(root)
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
    """The operators or kernels of this state, those inside of another left out."""
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
        node for _, node in walk(root) if node.kind == "module" and node.name == UNLINKED
    ]
    text = f"All other rows {signed(others)}."
    if unexplained:
        change = signed(sum(node.change for node in unexplained))
        text += f" Of the whole, {change} is unattributed or of launches that were not recorded."
    return f"{text} {NOT_TESTED}"


def _bytes(node: ByteNode) -> str:
    return f"{node.name} {signed_bytes(node.change)}"


def signed(ns: int) -> str:
    """A change in milliseconds, with its sign."""
    return f"{ns / 1e6:+.3f} ms"


def milliseconds(ns: int) -> str:
    """Milliseconds to the microsecond."""
    return f"{ns / 1e6:.3f} ms"


def signed_bytes(count: int) -> str:
    """A change in bytes, with its sign."""
    return f"{'+' if count >= 0 else ''}{format_bytes(count)}"
