"""The time and memory views of Compare: a tree of changes with A, B and the change of every row."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from sysbench.core.compare.nodes import ByteNode, Difference, TimeNode
from sysbench.core.formatting import counted
from sysbench.core.tables.cells import SIGNED, literal
from sysbench.core.tables.table import Cell, Column, Table, tabulate
from sysbench.core.tables.tree_rows import difference_label
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.compare_text import QUIET
from sysbench.tui.text import amount
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.outline_view import BAR, OutlineView
from sysbench.tui.widgets.table_view import FilterBox, Filtered, filter_bindings

BAR_CELLS = 6
"""Cells of a bar on each side of zero."""
MIN_NET = 0.05
"""Minimum of |total change| / sum of |changes| for which rows have a share of the total."""
STATE_MARKS = {"both": "", "new": "+ new ", "gone": "− gone ", "renamed": "→ renamed "}


@dataclass(frozen=True, slots=True)
class ChangeBranch:
    """A node of a difference with its place in the tree.

    Attributes:
        path: Unique path of names from the root.
        text: Its name, with the phase if a sibling has the same name.
        share: Its change over the total change; None if the changes nearly cancel.
        part: Its change over the largest one below the root, for the bar.
    """

    node: TimeNode | ByteNode
    path: str
    text: str
    share: float | None
    part: float
    children: tuple[ChangeBranch, ...] = ()

    @property
    def kind(self) -> str:
        return self.node.kind


def change_branches(root: TimeNode | ByteNode) -> ChangeBranch:
    moved = sum(abs(child.change) for child in root.children)
    net = root.change if abs(root.change) > MIN_NET * moved else 0
    largest = max((abs(child.change) for child in root.children), default=0) or abs(root.change)

    def branch(node: TimeNode | ByteNode, path: str, text: str) -> ChangeBranch:
        below: Sequence[TimeNode | ByteNode] = node.children
        labels = Counter(difference_label(child) for child in below)
        texts = [
            f"{difference_label(child)} · {child.phase}"
            if labels[difference_label(child)] > 1 and child.phase
            else difference_label(child)
            for child in below
        ]
        seen: Counter[str] = Counter()
        children = []
        for child, name in zip(below, texts, strict=True):
            seen[name] += 1
            place = f"{path}/{name}" if seen[name] == 1 else f"{path}/{name} #{seen[name]}"
            children.append(branch(child, place, name))
        return ChangeBranch(
            node=node,
            path=path,
            text=text,
            share=round(node.change / net, 3) + 0.0 if net else None,
            part=node.change / largest if largest else 0.0,
            children=tuple(children),
        )

    return branch(root, difference_label(root), difference_label(root))


def change_bar(part: float) -> str:
    """A bar to the left of zero for less, to the right for more."""
    cells = min(round(abs(part) * BAR_CELLS), BAR_CELLS)
    less, more = ("█" * cells, "") if part < 0 else ("", "█" * cells)
    return f"{less:>{BAR_CELLS}}│{more:<{BAR_CELLS}}"


def _amount(side: int) -> Callable[[ChangeBranch], Cell]:
    return lambda row: row.node.amounts[side]


def _count(side: int) -> Callable[[ChangeBranch], Cell]:
    return lambda row: row.node.counts[side]


def _columns(
    unit: str, shown_unit: str, amounts: str, count: str, counts: str
) -> tuple[Column[ChangeBranch], ...]:
    a, b, change = (f"{name}{shown_unit}" for name in ("A", "B", "change"))
    return (
        Column("name", lambda row: row.text, about="name of the row"),
        Column(f"a_{unit}", _amount(0), a, priority=1, about=amounts.format("A")),
        Column(f"b_{unit}", _amount(1), b, priority=2, about=amounts.format("B")),
        Column(
            f"change_{unit}",
            lambda row: row.node.change,
            change,
            f"{SIGNED}{unit}",
            about="B minus A",
        ),
        Column(
            "share", lambda row: row.share, "of change", priority=3, about="share of the change"
        ),
        Column(BAR, lambda row: change_bar(row.part), priority=4),
        Column(f"a_{count}", _count(0), f"A {count}", priority=5, about=counts.format("A")),
        Column(f"b_{count}", _count(1), f"B {count}", priority=6, about=counts.format("B")),
        Column(
            "phase",
            lambda row: row.node.phase,
            is_optional=True,
            priority=7,
            about="phase of the step",
        ),
        Column("kind", lambda row: row.node.kind, in_detail=True, about="kind of the row"),
    )


TIME_COLUMNS = _columns("ns", " ms", "time in {}'s traced step", "calls", "calls per step of {}")
BYTE_COLUMNS = _columns(
    "bytes", "", "bytes of {} at its peak", "blocks", "blocks of {} at its peak"
)


class DifferenceView(OutlineView[ChangeBranch]):
    NAMES: ClassVar[str] = "name"
    BOLD: ClassVar[Collection[str]] = ("step", "peak", "category", "module")
    FLEXIBLE_SHARE: ClassVar[float] = 0.4

    def __init__(self, columns: Sequence[Column[ChangeBranch]]) -> None:
        super().__init__()
        self._columns = columns

    def show_difference(self, root: TimeNode | ByteNode, *, perturbed: bool = False) -> None:
        self.perturbed = perturbed
        self.show_tree(change_branches(root))

    def mark_of(self, node: ChangeBranch) -> str:
        return STATE_MARKS[node.node.state]

    def matching_part(self, root: ChangeBranch, fits: Callable[[str], bool]) -> ChangeBranch | None:
        if fits(root.path):
            return root
        below = (self.matching_part(child, fits) for child in root.children)
        children = tuple(child for child in below if child is not None)
        return replace(root, children=children) if children else None

    def as_table(self, nodes: Sequence[ChangeBranch]) -> Table:
        return tabulate(nodes, *self._columns, name="difference", title="")


READING = "Reading both runs …"
NOT_TESTED = "one traced process each: not tested"


class RowsView(Filtered):
    """A summary, then the rows of a difference; `?` shows the whole summary."""

    BINDINGS: ClassVar[list[BindingType]] = filter_bindings("compare")

    table = getters.query_one(DifferenceView)

    def __init__(self, title: str, columns: Sequence[Column[ChangeBranch]], *, id: str) -> None:
        super().__init__(id=id)
        self._title = title
        self._columns = columns
        self.sentences: list[str] = []
        self.details: list[str] = []
        self.notes: list[str] = []
        self._awaits_rows = False
        self._root: TimeNode | ByteNode | None = None

    def compose(self) -> ComposeResult:
        yield Folding(id="summary")
        yield FilterBox()
        table = DifferenceView(self._columns)
        table.add_class("panel")
        table.display = False
        yield table
        yield Static(id="detail", markup=False)

    def show(
        self,
        root: TimeNode | ByteNode | None,
        sentences: Sequence[str],
        notes: Sequence[str],
        *,
        details: Sequence[str] = (),
        why: str = "",
        perturbed: bool = False,
    ) -> None:
        """Show the tree of a difference, or ``why`` a run has nothing to compare.

        ``details`` are further sentences of the summary, shown if they fit.
        """
        self.sentences, self.details, self.notes = list(sentences), list(details), list(notes)
        self.table.display = root is not None
        if root is None:
            self.sentences = [f"{why[:1].upper()}{why[1:]}.", *self.sentences]
        elif root is not self._root:  # else the sentences alone changed
            self.table.border_title = f"{self._title} · rows add up to {change_words(root)}"
            self.table.show_difference(root, perturbed=perturbed)
            if self._awaits_rows and self.display:
                self.start_focus()
        self._root = root
        self.query_one("#summary", Folding).show(self._summary)

    def on_mount(self) -> None:
        self.query_one("#summary", Folding).show(lambda width, height: Content(READING))

    def _summary(self, width: int, height: int) -> Content:
        lines = _wrapped([*self.sentences, *self.details], width)
        lines += [line.stylize(QUIET) for line in _wrapped(self.notes, width)]
        if len(lines) > height:
            mark = f" … ! {counted(len(self.notes), 'note')}: ?" if self.notes else " … ?"
            rest = " ".join(str(line).strip() for line in lines[height - 1 :])
            # Break between words: half a number is another number.
            last = textwrap.wrap(rest, max(width - len(mark), 1))[0]
            lines = [*lines[: height - 1], Content(last) + Content.styled(mark, QUIET)]
        return Content("\n").join(lines)

    def in_full(self) -> str:
        return "\n".join(map(literal, [*self.sentences, *self.details, *self.notes]))

    @on(DifferenceView.RowHighlighted)
    def show_detail(self) -> None:
        node = self.table.node
        line = self.query_one("#detail", Static)
        line.update(Content("" if node is None else detail_words(node)))

    def start_focus(self) -> None:
        self._awaits_rows = not self.table.display
        if self.table.display:
            give_focus(self.table)

    def action_filter(self) -> None:
        if self.table.display:
            super().action_filter()

    def narrow(self, words: str) -> None:
        self.table.filter(words)


def show_difference(
    time: RowsView, memory: RowsView, difference: Difference, *, perturbed: bool, phases: str
) -> None:
    on_time = difference.summary[: -1 if difference.memory else None]
    on_memory = difference.summary[-1:] if difference.memory else []
    missing = difference.missing
    time.set_class(bool(difference.unexplained), "-unexplained")
    time.show(
        difference.time,
        on_time,
        difference.notes,
        details=[phases] if phases else [],
        why=missing.get("time", ""),
        perturbed=perturbed,
    )
    memory.show(difference.memory, on_memory, [], why=missing.get("memory", ""))


def _wrapped(sentences: Sequence[str], width: int) -> list[Content]:
    return [
        Content(line)
        for text in sentences
        for line in textwrap.wrap(literal(text), width, subsequent_indent="  ")
    ]


def change_words(root: TimeNode | ByteNode) -> str:
    if isinstance(root, TimeNode):
        return f"{root.change / 1e6:+,.3f} ms"
    return f"{'+' if root.change >= 0 else ''}{amount(root.change)}"


def detail_words(branch: ChangeBranch) -> str:
    """A row in full: path, state, phase, counts of A and B, stack."""
    node = branch.node
    words = [literal(branch.path)]
    if node.state != "both":
        words.append(node.state)
    if node.phase:
        words.append(node.phase)
    if any(count is not None for count in node.counts):
        what = "calls" if isinstance(node, TimeNode) else "blocks"
        a, b = ("–" if count is None else f"{count:,.4g}" for count in node.counts)
        words.append(f"{what} {a} → {b}")
    if isinstance(node, ByteNode) and node.stack:
        words.append(literal(" < ".join(node.stack)))
    return " · ".join(words)
