"""The one-line live strip on top of every screen."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from sysbench.tui.live.sensors import StripState
from sysbench.tui.text import elapsed

SEPARATOR = " │ "


class LiveStrip(Widget):
    """Devices and host now; the live run first while there is one. Parts that do not fit
    are dropped from the right."""

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
        self._painted = Content("")

    def paint(self) -> None:
        """Repaint if the text has changed."""
        if self._content() != self._painted:
            self.refresh()

    def render(self) -> Content:
        self._painted = self._content()
        return self._painted

    def _content(self) -> Content:
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
        """Name and pass of the live run."""
        watch = self.state.watch
        if watch is None or watch.over:
            return []
        view = watch.view
        where = " ".join(
            filter(None, (view.current or "starting", view.round_text, elapsed(watch.seconds)))
        )
        return [f"● {view.spec.get('model', 'run')} {where}"]
