"""Every failure that a person should read, in one tree.

A message says what is wrong, where, and what to do about it. ``exit_code`` is what
the command line returns for it.
"""

from __future__ import annotations


class SysbenchError(Exception):
    """The root: catch this to catch everything the engine reports."""

    exit_code = 1


class SpecError(SysbenchError, ValueError):
    """A spec, a profile or an option that cannot be measured as written.

    Attributes:
        field: The dotted name of the key at fault.
        value: The value as it was given.
        allowed: What would have been accepted, in words.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        name = field if field.isprintable() else _short(field)
        super().__init__(f"{name} = {_short(value)}: {allowed}")


class ProfileError(SysbenchError):
    """A TOML file that cannot be read as a profile; names the file and the place."""

    exit_code = 2


class NotFoundError(SysbenchError):
    """No run, preset or file by that name."""

    exit_code = 2


class DeviceBusyError(SysbenchError):
    """Another measuring run holds the device."""


class DamagedFileError(SysbenchError):
    """A file that is not what its name says: truncated, foreign or hostile."""


class ForeignFileError(DamagedFileError):
    """A file that was given to be inspected and cannot be: absent, of no kind that is known,
    damaged, hostile, or larger than the memory that decoding may take."""

    exit_code = 2


class WorkerFailed(SysbenchError):
    """A pass ended without its result; the message says how."""


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"
