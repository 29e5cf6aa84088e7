"""Handle keys in the order in which they were typed.

Textual posts a key to the focused widget, and a key with a binding then passes through the queue of
each parent up to the app. Keys that arrive in one write, for example from a paste, overtake it:
"⌫ 5 ⇥ 6" becomes "56⌫" in one field. Here a key waits until the previous one is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from textual.app import App
from textual.events import Key
from textual.message_pump import MessagePump
from textual.widget import Widget

ANSWER_SECONDS = 5.0
"""Timeout for the effects of a key; a removed widget never answers."""
BUSY_SECONDS = 60.0
"""The same while the widget exists: a screen takes longer to mount if other programs compute."""
SETTLE_SECONDS = 0.01
LAPS = 2
"""Ways up to the app: a key goes up and acts there, then the messages of its action go up."""


class KeyQueue:
    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._waiting: deque[Key] = deque()
        self._since: float | None = None  # start of the key in progress
        self._asked: MessagePump | None = None  # what handles it now

    async def pass_on(self, key: Key, handle: Callable[[Key], Awaitable[None]]) -> None:
        """Handle a key now, or queue it behind earlier keys."""
        if not self._is_done or not getattr(self._app.screen, "takes_keys", True):
            self._waiting.append(key)
            return
        self._since = monotonic()
        focused = self._app.focused or self._app.screen
        await handle(key)
        self._follow([*focused.ancestors_with_self] * LAPS)

    @property
    def _is_done(self) -> bool:
        """Whether no key is in progress, or none that will be answered."""
        if self._since is None:
            return True
        is_alive = self._asked is not None and self._asked.is_running
        return monotonic() - self._since > (BUSY_SECONDS if is_alive else ANSWER_SECONDS)

    def _follow(self, nodes: list[MessagePump]) -> None:
        while nodes:
            self._asked = nodes.pop(0)
            if self._asked.call_later(self._follow, nodes):
                return
        if self._app.screen_stack:  # empty while the app exits
            self._asked = self._app.screen
            self._asked.call_after_refresh(self._settle)

    async def _settle(self) -> None:
        is_late = self._since is None or monotonic() - self._since > ANSWER_SECONDS
        if is_late or getattr(self._app.screen, "has_settled", True):
            self._since = None
            await self.release()
        else:
            self._app.set_timer(SETTLE_SECONDS, self._settle)

    async def release(self) -> None:
        """Handle the next queued key, unless one is in progress."""
        if self._waiting and self._since is None:
            await self._app.on_event(self._waiting.popleft())


def give_focus(widget: Widget) -> None:
    """Focus a widget at once; ``Widget.focus`` would handle queued keys first."""
    if widget.is_attached:
        widget.screen.set_focus(widget)
