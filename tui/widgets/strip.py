"""The one-line live strip on top of every screen."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from ..numerals import elapsed
from ..sensors import StripState
from ..wording import headline

SEPARATOR = " │ "


class LiveStrip(Widget):
    """Devices and host now; the live run first while there is one. Parts that do not fit
    fall away from the right."""

    DEFAULT_CSS = """
    LiveStrip {
        dock: top;
        height: 1;
        background: $panel;
        color: $foreground 80%;
    }
    """

    def __init__(self, state: StripState) -> None:
        super().__init__()
        self.state = state

    def render(self) -> Content:
        room = self.size.width - 1
        pieces: list[Content] = []
        live = self._live_part()
        used = 0
        for number, text in enumerate([*live, *self.state.parts()]):
            width = len(text) + (len(SEPARATOR) if pieces else 0)
            if used + width > room:
                break
            used += width
            if pieces:
                pieces.append(Content.styled(SEPARATOR, "$border-blurred"))
            style = "$accent bold" if number < len(live) else ""
            pieces.append(Content.styled(text, style))
        return Content(" ") + Content("").join(pieces)

    def _live_part(self) -> list[str]:
        """Name and pass of the live run: long where there is room for it."""
        watch = self.state.watch
        if watch is None or watch.over:
            return []
        view = watch.view
        where = f"{view.current or 'starting'} {elapsed(watch.seconds)}"
        roomy = self.size.width >= 150 and view.spec
        name = headline(view.spec) if roomy else view.spec.get("model", "run")
        return [f"● {name} {where}"]
