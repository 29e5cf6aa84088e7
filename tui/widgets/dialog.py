"""Base classes of the dialogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widget import Widget
from textual.widgets import Input, Static

from sysbench.core.errors import SysbenchError
from sysbench.tui.textual_patches import GuardedPalette
from sysbench.tui.widgets.drawing import Framed


@contextmanager
def report_errors(node: App[Any] | Widget, title: str = "") -> Iterator[None]:
    """Show an expected error as a notice, and leave the block."""
    try:
        yield
    except (SysbenchError, OSError) as error:
        node.notify(str(error), title=title, severity="error")


AMPLE = "-ample"
WIDTHS = [(0, "-slim"), (60, AMPLE)]


class Overlay(Screen[ScreenResultType]):
    """Base class of everything that opens in front of a screen."""

    DEFAULT_CLASSES = AMPLE  # from the start, as adding the class later costs a layout

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        # The second of two clicks would close the screen below.
        if self.app.screen is not self:
            return AwaitComplete()
        return super().dismiss(result)


class Dialog(ModalScreen[ScreenResultType], Overlay[ScreenResultType]):
    """Base class of the dialogs; `ModalScreen` comes first for its styles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="dialog.cancel")
    ]

    def complaint(self) -> Static:
        return Static(classes="complaint", markup=False)

    def complain(self, text: str) -> None:
        label = self.query_one(".complaint", Static)
        label.update(f"✗ {text}" if text else "")
        label.display = bool(text)


class InputDialog(Dialog[None]):
    """Asks for a text; stays open, with the reason, while it is refused."""

    def __init__(
        self, title: str, verb: str, box: Input, accept: Callable[[str], str], *, hint: str = ""
    ) -> None:
        super().__init__()
        self._title, self._verb, self._box = title, verb, box
        self._use, self._hint = accept, hint

    def compose(self) -> ComposeResult:
        with Framed(self._title, f"enter {self._verb}, esc cancels", classes="dialog"):
            yield self._box
            if self._hint:
                yield Static(self._hint, markup=False)
            yield self.complaint()

    @on(Input.Submitted)
    def _accept(self, event: Input.Submitted) -> None:
        try:
            notice = self._use(event.value.strip())
        except (SysbenchError, OSError) as error:
            self.complain(str(error))
            return
        if notice:
            self.app.notify(notice)
        self.dismiss()


class Palette(GuardedPalette, Overlay[Any]):
    """Textual's command palette."""
