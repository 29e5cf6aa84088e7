"""The time and memory views of Compare: a tree of changes, largest first."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from sysbench.core.compare.nodes import ByteNode, Difference, TimeNode
from sysbench.core.formatting import counted
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Column
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.compare_text import QUIET
from sysbench.tui.text import amount
from sysbench.tui.widgets.difference_view import ChangeBranch, DifferenceView
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.table_view import FilterBox, Filtered, filter_bindings

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
        """Show the tree of a difference.

        Args:
            root: The tree; None if a run has nothing to compare, with the reason in ``why``.
            sentences: The summary.
            notes: Caveats of the rows.
            details: Further sentences, shown if they fit.
            perturbed: Whether tracing changed the times too much.
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
        """All sentences and notes, or as much as fits and a mark."""
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
        """The whole summary with its notes, for `?`."""
        return "\n".join(map(literal, [*self.sentences, *self.details, *self.notes]))

    @on(DifferenceView.RowHighlighted)
    def show_detail(self) -> None:
        node = self.table.node
        line = self.query_one("#detail", Static)
        line.update(Content("" if node is None else detail_words(node)))

    def start_focus(self) -> None:
        """Focus the rows, now or when they arrive."""
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
    """Show both trees of a difference; the last sentence of its summary is about memory."""
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
