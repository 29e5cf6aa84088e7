"""The views of a tab, on one line."""

from __future__ import annotations

from collections.abc import Iterator

from .tab_bar import TabBar

MORE = "‹"


class ViewBar(TabBar):
    """``[Table] Tree …``: like the tabs, without numbers; a key goes to the next.

    Where they do not all fit, those before the active one give way.
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
