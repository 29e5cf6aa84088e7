"""A row of numbered tabs, and the views of a tab, each on one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

KEYS = "1234567890"
"""The numbers of the first tabs; further ones have none."""
BEFORE, BEHIND = "‹", "›"
"""In place of labels that have no room."""


class TabBar(Widget):
    """``[1 Summary] 2 Timing …``: the active tab in brackets; a click posts `Chosen`."""

    DEFAULT_CSS = """
    TabBar {
        height: 1;
        background: $panel 50%;
    }
    """

    active = reactive("")

    @dataclass
    class Chosen(Message):
        """A tab was clicked."""

        name: str

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def _all_labels(self) -> list[tuple[str, str]]:
        """Every name with its label; a bar too narrow for them has fewer blanks."""
        letters = sum(map(len, self.names))
        room = (self.size.width - letters) // max(1, len(self.names))
        space, joint = (" " if room >= cells else "" for cells in (4, 3))
        labels = []
        for place, name in enumerate(self.names):
            label = f"{KEYS[place : place + 1]}{joint}{name.title()}"
            labels.append((name, f"[{label}]" if name == self.active else f" {label}{space}"))
        return labels

    def _labels(self) -> list[tuple[str, str]]:
        """The labels that fit, the active one among them.

        Where not all fit, those before the active one give way, then those behind it.
        """
        labels = self._all_labels()
        if _width(labels) <= self.size.width:
            return labels
        active = [*self.names].index(self.active) if self.active in self.names else 0
        room = self.size.width - 1
        first, last = 0, len(labels)
        while first < active and _width(labels[first : active + 1]) > room:
            first += 1
        while last > active + 1 and _width(labels[first:last]) > room:
            last -= 1
        shown = labels[first:last]
        if first and first < active:
            shown[0] = (shown[0][0], BEFORE + shown[0][1][1:])
        return shown

    def render(self) -> Content:
        labels = self._labels()
        content = Content.assemble(
            *(
                (label, "bold $accent on $accent 20%" if name == self.active else "$foreground 60%")
                for name, label in labels
            )
        )
        if labels and labels[-1][0] != self.names[-1]:
            content = content.append(Content.styled(BEHIND, "$foreground 60%"))
        return content

    def on_click(self, event: Click) -> None:
        begin = 0
        for name, label in self._labels():
            if begin <= event.x < begin + len(label):
                self.post_message(self.Chosen(name))
            begin += len(label)


class ViewBar(TabBar):
    """``[Table] Tree …``: like the tabs, without numbers; a key goes to the next."""

    def _all_labels(self) -> list[tuple[str, str]]:
        return [
            (name, f"[{name.title()}]" if name == self.active else f" {name.title()} ")
            for name in self.names
        ]


def _width(labels: list[tuple[str, str]]) -> int:
    """Cells of the labels; the blank behind the last one may be cut."""
    return len("".join(label for _, label in labels).rstrip())


def after(names: Sequence[str], name: str) -> str:
    """The next name; after the last one, the first."""
    return names[(names.index(name) + 1) % len(names)]
