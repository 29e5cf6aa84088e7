"""A one-line select whose value also turns with the left and right keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Select


class Choice(Select[str]):
    """A closed list of texts. Enter opens the list, left and right step through it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Previous choice", show=False),
        Binding("right", "turn(1)", "Next choice", show=False),
    ]

    DEFAULT_CSS = """
    Choice {
        height: 1;
        &.-textual-compact > SelectCurrent {
            background: $surface;
            padding: 0 1;
            height: 1;
        }
        &.-textual-compact:focus > SelectCurrent {
            background: $accent 25%;
        }
        & > SelectOverlay {
            min-width: 30;
            max-height: 14;
            border: round $accent 70%;
        }
        .arrow {
            color: $foreground 50%;
        }
    }
    """

    def __init__(
        self, choices: Sequence[tuple[str, str]], value: str, *, id: str | None = None
    ) -> None:
        super().__init__(choices, value=value, allow_blank=False, compact=True, id=id)
        self.choices = [name for _, name in choices]

    def action_turn(self, by: int) -> None:
        at = self.choices.index(str(self.value))
        self.value = self.choices[(at + by) % len(self.choices)]
