"""Keys carried out in the order in which they were typed.

Textual posts a key to the focused widget, and one with a binding rises from there through the queue
of each parent up to the app. Keys that come faster than that, as a paste or a slow line sends them,
overtake it: "⌫ 5 ⇥ 6" becomes "56⌫" in one field. Here each is done before the next is looked at.
"""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App
from textual.dom import DOMNode
from textual.events import Event, Key
from textual.widget import Widget
from textual.widgets import Input

FOCUS_SECONDS = 1.0
"""Longest wait for a field to take the focus; a field that is taken away never does."""


class Keys:
    """The keys of an app; those for a screen that is not built yet wait until it is."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._held: list[Key] = []

    async def carry_out(self, key: Event) -> bool:
        """Type a new key into the focused field, or run the action that it is bound to.

        Returns:
            Whether it did something, or is held; else the event goes Textual's way.
        """
        app = self._app
        if not isinstance(key, Key) or key.is_forwarded or not app.screen_stack:
            return False
        if self._held or not getattr(app.screen, "takes_keys", True):
            self._held.append(key)
            return True
        field = app.focused
        if isinstance(field, Input) and key.is_printable and key.character:
            if field.selection.is_empty:
                field.insert_text_at_cursor(key.character)
            else:
                field.replace(key.character, *field.selection)
            return True
        active = app.screen.active_bindings.get(key.key)
        if active is None or not active.enabled:
            return False
        done = await app.run_action(active.binding.action, active.node)
        done = done or await self._run_above(key, active.node)
        focused = app.focused
        if isinstance(focused, Input) and focused is not field:
            await _focus_taken(focused)
        return done

    async def _run_above(self, key: Key, node: DOMNode) -> bool:
        """Run what parents of a node bind the key to, where the node's own action passes it on.

        A field's arrows scroll it, if there is more of it; else they are the form's.
        """
        chain = iter(self._app.screen._modal_binding_chain)
        for own, _ in chain:
            if own is node:
                break
        for parent, bindings in chain:
            for binding in bindings.key_to_bindings.get(key.key, ()):
                if await self._app.run_action(binding.action, parent):
                    return True
        return False

    async def release(self) -> None:
        """Do what was typed while the screen was being built."""
        held, self._held = self._held, []
        for key in held:
            await self._app.on_event(key)


def give_focus(widget: Widget) -> None:
    """Give a widget the focus at once; ``Widget.focus`` lets keys that wait go before it."""
    if widget.is_attached:
        widget.screen.set_focus(widget)


async def _focus_taken(field: Input) -> None:
    """Wait until the field has done what it does with the focus: it selects its text."""
    taken = asyncio.Event()
    if field.is_attached and field.call_later(taken.set):
        try:
            await asyncio.wait_for(taken.wait(), FOCUS_SECONDS)
        except TimeoutError:
            return  # it goes away, or is stuck: the next key is not held up for it
