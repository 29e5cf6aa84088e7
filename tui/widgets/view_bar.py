"""The views of a tab, on one line."""

from __future__ import annotations

from collections.abc import Iterator

from .tab_bar import TabBar


class ViewBar(TabBar):
    """``[Table] Tree …``: like the tabs, without numbers; a key goes to the next."""

    def _labels(self) -> Iterator[tuple[str, str]]:
        for name in self.names:
            label = name.title()
            yield name, f"[{label}]" if name == self.active else f" {label} "
