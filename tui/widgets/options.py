"""A list to choose from that a terminal may have no room for."""

from __future__ import annotations

from textual.widgets import OptionList


class Options(OptionList):
    """Textual's list, which raises when it is paged without a line in sight."""

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]
