"""A row of numbered tabs, and the views of a tab, each on one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

KEYS = "1234567890"
"""The numbers of the first tabs; further ones have none."""


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

    def _labels(self) -> Iterator[tuple[str, str]]:
        letters = sum(map(len, self.names))
        room = (self.size.width - letters) // max(1, len(self.names))
        space, joint = (" " if room >= cells else "" for cells in (4, 3))
        for place, name in enumerate(self.names):
            label = f"{KEYS[place : place + 1]}{joint}{name.title()}"
            yield name, f"[{label}]" if name == self.active else f" {label}{space}"

    def render(self) -> Content:
        return Content.assemble(
            *(
                (label, "bold $accent on $accent 20%" if name == self.active else "$foreground 60%")
                for name, label in self._labels()
            )
        )

    def on_click(self, event: Click) -> None:
        begin = 0
        for name, label in self._labels():
            if begin <= event.x < begin + len(label):
                self.post_message(self.Chosen(name))
            begin += len(label)


MORE = "‹"


class ViewBar(TabBar):
    """``[Table] Tree …``: like the tabs, without numbers; a key goes to the next.

    Where not all fit, those before the active one are dropped.
    """

    def _labels(self) -> Iterator[tuple[str, str]]:
        labels = [
            (name, f"[{name.title()}]" if name == self.active else f" {name.title()} ")
            for name in self.names
        ]
        last = [*self.names].index(self.active) if self.active in self.names else 0
        first = 0
        while first < last and _width(labels[first : last + 1]) > self.size.width:
            first += 1
        if first:
            name, label = labels[first]
            labels[first] = (name, MORE + label[1:]) if first < last else (name, label)
        yield from labels[first:]


def _width(labels: list[tuple[str, str]]) -> int:
    return sum(len(label) for _, label in labels)


def after(names: Sequence[str], name: str) -> str:
    """The next name; after the last one, the first."""
    return names[(names.index(name) + 1) % len(names)]
