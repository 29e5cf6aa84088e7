"""F1: every key of the screen below, and the purpose of each screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sysbench.tui.modes import MODES
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.facts import dialog_room, hanging

KEY_WIDTH = 10


class HelpScreen(Dialog[None]):
    """The active keys of the screen below, grouped by the widget that has them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss", "Close", id="help.close")
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "esc closes"
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(Static).update(Content("\n").join(self._lines()))

    def _lines(self) -> Iterator[Content]:
        width = dialog_room(self.app.size.width)
        for mode in MODES.values():
            yield from hanging(_key(mode.title, "bold $accent"), mode.about, width)
        for title, keys in self._groups().items():
            yield Content("")
            yield Content.styled(title, "bold")
            for what, names in keys.items():
                yield from hanging(_key(" ".join(names), "$accent"), what, width)
        yield Content("")
        yield from hanging(
            _key("tab", "$accent"), "next field or panel; shift+tab goes back", width
        )
        yield from hanging(_key("← →", "$accent"), "turn a choice in the form", width)
        yield from hanging(_key("^p", "$accent"), "the palette: everything else", width)

    def _groups(self) -> dict[str, dict[str, list[str]]]:
        """By group title and action the keys of the screen below.

        Only our bindings have an id: Textual's move cursors and need no help.
        """
        groups: dict[str, dict[str, list[str]]] = {}
        below = self.app.screen_stack[-2]
        for node, binding, _, tooltip in below.active_bindings.values():
            if not binding.id or not binding.description:
                continue
            title = node.BINDING_GROUP_TITLE or below.BINDING_GROUP_TITLE or "Here"
            about = tooltip or binding.tooltip
            what = f"{binding.description}: {about}" if about else binding.description
            keys = groups.setdefault(title, {}).setdefault(what, [])
            keys.append(self.app.get_key_display(binding))
        return groups


def _key(text: str, style: str) -> Content:
    return Content.styled(f"{text:<{KEY_WIDTH}}", style)
