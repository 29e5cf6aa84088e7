"""A key of a spec: the type of a row of the table, and the usual kinds of rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sysbench.core.errors import SpecError
from sysbench.core.formatting import parse_bytes, parse_ratio

LARGEST = 2**31 - 1

Group = Literal["work", "dimensions", "update", "compile", "stop", "machine", ""]
Decides = Literal["forward", "step", "procedure", "conditions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of a spec.

    Attributes:
        name: The key, as ``--set`` and TOML take it.
        help: Its meaning in a line.
        allowed: The accepted values in words, for messages.
        choices: The closed list of texts, or empty.
        convert: A value of the field's type from a text or a TOML value; ValueError or
            TypeError if it can't be.
        valid: Whether a converted value is in range.
        group: Section of the form; empty for the experiments of the studies, which are not in it.
        decides: Scope of its effect. ``forward``: the kernels of a forward pass. ``step``: only
            the part of a step after it. ``procedure``: only the duration of the measurement.
            ``conditions``: none of these.
        part_of: The key that this one describes further; both are one factor of a study.
        later: Added after runs had been stored: at its default it is left out of the identity,
            so that those runs keep their identity.
        is_typed: Whether people write it; else it follows from other keys, and helps leave it out.
        zero: What 0 stands for, in a word or two; empty where it is a number like any other.
        is_used: Whether the value has a meaning, by the values of the other keys.
    """

    name: str
    help: str
    allowed: str
    choices: tuple[str, ...] = ()
    convert: Callable[[Any], Any]
    valid: Callable[[Any], bool]
    group: Group = ""
    decides: Decides = "forward"
    part_of: str = ""
    later: bool = False
    is_typed: bool = True
    zero: str = ""
    is_used: Callable[[Mapping[str, Any]], bool] = lambda values: True

    def parse(self, value: object) -> Any:
        """The field's value in its canonical form.

        Raises:
            SpecError: Not of the field's type, or out of its range.
        """
        try:
            converted = self.convert(value)
            is_valid = self.valid(converted)
        except (ValueError, TypeError, OverflowError):
            is_valid = False
        if not is_valid:
            raise SpecError(self.name, value, self._message(value))
        return converted

    def _message(self, value: object) -> str:
        typed = value if isinstance(value, str) else ""
        close = difflib.get_close_matches(typed, self.choices, n=1, cutoff=0.5)
        return f"{self.allowed}; did you mean {close[0]!r}?" if close else self.allowed


def as_text(value: Any) -> str:
    """A text without the space around it; TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def as_whole_number(value: Any) -> int:
    """A whole number from one or a text; TypeError for a fraction or a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def as_number(value: Any) -> float:
    """A number from one or a text; TypeError for a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value) + 0.0  # -0.0 becomes 0.0: equal specs need equal text


def count(name: str, help: str, low: int = 1, high: int = LARGEST, zero: str = "") -> Field:
    """A whole number in a range; ``zero`` is what 0 stands for."""
    allowed = f"a whole number from {low} to {high}" + (f" (0: {zero})" if zero else "")
    return Field(
        name=name,
        help=help,
        allowed=allowed,
        convert=as_whole_number,
        valid=lambda value: low <= value <= high,
        zero=zero,
    )


def choice(name: str, help: str, *choices: str) -> Field:
    """One text of a closed list."""

    def convert(value: Any) -> str:
        # TOML and people write on/off as booleans; no field here has both readings.
        if isinstance(value, bool):
            return "on" if value else "off"
        return as_text(value)

    return Field(
        name=name,
        help=help,
        allowed="one of " + ", ".join(choices),
        choices=choices,
        convert=convert,
        valid=lambda value: value in choices,
    )


def switch(name: str, help: str) -> Field:
    """True or false, by several words."""
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    return Field(
        name=name,
        help=help,
        allowed="true or false",
        choices=("false", "true"),
        convert=lambda value: (
            value if isinstance(value, bool) else words.get(as_text(value).lower())
        ),
        valid=lambda value: value is not None,
    )


def decimal(
    name: str,
    help: str,
    allowed: str,
    low: float,
    high: float,
    convert: Callable[[Any], float] = as_number,
    zero: str = "",
) -> Field:
    """A number in a range that ``allowed`` puts in words."""
    return Field(
        name=name,
        help=help,
        allowed=allowed,
        convert=convert,
        valid=lambda value: low <= value <= high,  # false for nan
        zero=zero,
    )


def as_ratio(value: Any) -> float:
    """A share, from ``0.5%`` too."""
    return parse_ratio(value) if isinstance(value, str) else as_number(value)


def as_bytes(value: Any) -> int:
    """A count of bytes, from ``24GiB`` too."""
    return parse_bytes(value) if isinstance(value, str) else as_whole_number(value)
