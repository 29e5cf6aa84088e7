"""A list to choose from that stands a terminal with no room for it."""

from __future__ import annotations

from typing import Literal

from textual.widgets import OptionList


class Options(OptionList):
    """Textual's list, which ends the app when it is paged without a line in sight."""

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        if self.scrollable_content_region:
            super()._move_page(direction)
