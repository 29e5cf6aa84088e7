"""Keys carried out in the order in which they were typed.

Textual posts a key to the focused widget, and one with a binding rises from there through the queue
of each parent up to the app. Keys that come faster than that, as a paste or a slow line sends them,
overtake it: "⌫ 5 ⇥ 6" becomes "56⌫" in one field. Here each is done before the next is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from textual.app import App
from textual.dom import DOMNode
from textual.events import Event, Key
from textual.message_pump import MessagePump
from textual.widget import Widget
from textual.widgets import Input

ANSWER_SECONDS = 5.0
"""Longest wait for what a key set off; a widget that is taken away never answers."""


class Keys:
    """The keys of an app; those for a screen that is not built yet wait until it is."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._held: list[Key] = []
        self._last: DOMNode | None = None  # where the last key did something

    async def carry_out(self, key: Event) -> bool:
        """Type a new key into the focused field, or run the action that it is bound to.

        Returns:
            Whether it did something, or is held; else the event goes Textual's way.
        """
        app = self._app
        if not isinstance(key, Key) or key.is_forwarded or not app.screen_stack:
            return False
        is_text = isinstance(app.focused, Input) and key.is_printable
        if not self._held and not is_text and await self._has_closed():
            # What the dialog was asked for is told to the app, after this.
            self._held.append(key)
            app.call_later(self.release)
            return True
        if self._held or not getattr(app.screen, "takes_keys", True):
            self._held.append(key)
            return True
        if not app.screen.is_mounted:  # a dialog without its fields
            await _in_time(app.screen._mounted_event.wait())
        field = app.focused
        if isinstance(field, Input) and key.is_printable and key.character:
            self._last = field
            if field.selection.is_empty:
                field.insert_text_at_cursor(key.character)
            else:
                field.replace(key.character, *field.selection)
            return True
        active = app.screen.active_bindings.get(key.key)
        if active is None or not active.enabled:
            return False
        self._last = active.node
        done = await app.run_action(active.binding.action, active.node)
        done = done or await self._run_above(key, active.node)
        focused = app.focused
        if isinstance(focused, Input) and focused is not field:
            await _in_time(_passed(focused))  # it selects its text
        return done

    async def _has_closed(self) -> bool:
        """Wait until what earlier keys set off is done; whether another screen is there then."""
        screen = self._app.screen
        last, self._last = self._last, None
        if last is not None:
            await _in_time(passed_up(last))
        settled = getattr(self._app.screen, "settled", None)
        if settled is not None:
            await _in_time(settled())
        return self._app.screen is not screen

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
        """Do what was typed while a screen was being built, or a dialog told its answer."""
        held, self._held = self._held, []
        for key in held:
            await self._app.on_event(key)


def give_focus(widget: Widget) -> None:
    """Give a widget the focus at once; ``Widget.focus`` lets keys that wait go before it."""
    if widget.is_attached:
        widget.screen.set_focus(widget)


async def passed_up(node: DOMNode) -> None:
    """Wait until a node and all that is around it have done what they were sent before."""
    for one in node.ancestors_with_self:
        if isinstance(one, App):
            return  # it waits for this
        await _passed(one)


async def _passed(node: MessagePump) -> None:
    passed = asyncio.Event()
    if node.is_attached and node.call_later(passed.set):
        await passed.wait()


async def _in_time(answer: Awaitable[object]) -> None:
    try:
        await asyncio.wait_for(answer, ANSWER_SECONDS)
    except TimeoutError:
        return  # it goes away, or is stuck: the next key is not held up for it
