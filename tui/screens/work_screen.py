"""Base class of the screens: status strip, footer, copy and explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize, ScreenResume
from textual.geometry import Offset
from textual.screen import Screen
from textual.widget import Widget

from sysbench.tui.widgets.key_bar import KeyBar, LiveStrip

if TYPE_CHECKING:
    from sysbench.tui.app import SysbenchApp

WIDTHS = [(0, "-narrow"), (100, "-wide"), (140, "-roomy")]
SHORT = 30
"""Below this height legends and notes are hidden to leave space for rows and plots."""
HEIGHTS = [(0, "-short"), (SHORT, "-middling"), (36, "-tall")]
TINY = 20
"""Below this height the command and the full text of a row are hidden too."""
UNFOLDED = "-unfolded"
"""Class of a short screen that shows legends and notes."""


def unfold_binding(*, is_shown: bool) -> Binding:
    """Bind the key for legends and notes; show it in the footer of screens that have some."""
    about = "Show legends, notes and the whole command"
    return Binding("L", "unfold", "Legend", show=is_shown, id="unfold", tooltip=about)


class WorkScreen(Screen[None]):
    """Base class of the screens. Subclasses fill `body` and may override the rest."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "y", "copy", "Copy", id="copy", tooltip="Copy the table as Markdown, or the command"
        ),
        Binding("question_mark", "explain", "Explain", id="explain", tooltip="About these numbers"),
        unfold_binding(is_shown=False),
    ]

    EXPLAINS: ClassVar[Sequence[str]] = ()
    takes_keys = True
    """False while the screen is mounting: `KeyQueue` holds key presses until `release`."""

    if TYPE_CHECKING:
        # The app imports this module.
        app = getters.app(SysbenchApp)

    @property
    def is_current(self) -> bool:
        # Textual also treats the screen behind a modal as current and repaints both.
        return bool(self.app.screen_stack) and self.app.screen is self

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        widget, offset = super().get_widget_and_offset_at(x, y)
        # A widget that is being replaced has no parent, but Textual would select its text.
        return (widget, offset) if widget is None or widget.is_attached else (None, None)

    def compose(self) -> ComposeResult:
        yield LiveStrip(self.app.session.strip)
        yield from self.body()
        yield KeyBar(compact=self.app.size.width < 100)

    @property
    def is_outdated(self) -> bool:
        """Whether the app has another run or pair for this screen than the one shown."""
        return False

    def catch_up(self) -> None:
        """Show the app's run or pair. Runs on an explicit mode switch, not after a dialog."""

    async def take_keys(self) -> None:
        """Replay keys that were queued while the screen was mounting."""
        self.takes_keys = True
        await self.app.keys.release()

    def on_resize(self, event: Resize) -> None:
        self.query_one(KeyBar).compact = event.size.width < 100
        self.set_class(event.size.height < TINY, "-tiny")
        self.refresh_bindings()  # "Legend" depends on the height
        if not self.is_current:
            self.call_after_refresh(self.app.screen.refresh)  # a dialog's backdrop

    def on_screen_suspend(self) -> None:
        self.query(KeyBar).add_class("-covered")  # its keys do not work behind a dialog

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.query(KeyBar).remove_class("-covered")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "unfold":
            return self.size.height < SHORT
        return super().check_action(action, parameters)

    def body(self) -> ComposeResult:
        yield from ()

    def paint(self) -> None:
        """Update the screen; called twice a second while it is visible."""
        # When the app exits, a screen outlives its widgets for a moment.
        for strip in self.query(LiveStrip):
            strip.paint()

    def command(self) -> str:
        return "sysbench-tui"

    def copyable(self) -> tuple[str, str]:
        """The name and the text that `y` copies."""
        return "the command", self.command()

    def explanations(self) -> list[str]:
        return [*self.EXPLAINS]

    def subject(self) -> str:
        """The selected row in full, for `?`; may be empty."""
        return ""

    def action_copy(self) -> None:
        name, text = self.copyable()
        self.app.copy_to_clipboard(text)
        self.notify(f"Copied {name}.", timeout=2)

    def action_explain(self) -> None:
        from sysbench.tui.screens.ask_dialog import (  # lazy: first frame
            ExplainScreen,
            columns_in_view,
        )

        self.app.push_screen(
            ExplainScreen(self.explanations(), self.subject(), columns_in_view(self))
        )

    def action_unfold(self) -> None:
        self.toggle_class(UNFOLDED)

    def action_copy_command(self) -> None:
        self.app.copy_to_clipboard(self.command())
        self.notify("Copied the command.", timeout=2)

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        """Commands without a key that are valid now: title, help, and function."""
        return [("screen: Copy command", self.command(), self.action_copy_command)]
