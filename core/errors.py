"""Exceptions whose messages are for a person to read, in one tree.

A message has the fault, its place and the remedy. ``exit_code`` is the exit code of the command
line for it.
"""

from __future__ import annotations


class SysbenchError(Exception):
    """The root: catch this to catch everything the engine reports."""

    exit_code = 1


class SpecError(SysbenchError, ValueError):
    """A spec, a profile or an option that cannot be measured as written.

    Attributes:
        field: The dotted name of the key at fault.
        value: The value as given.
        allowed: The accepted values, in words.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        name = field if field.isprintable() else _short(field)
        super().__init__(f"{name} = {_short(value)}: {allowed}")


class InterpreterError(SpecError):
    """A Python that workers cannot run in; ``allowed`` has the reason, and the remedy if there is
    one."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__("python", path, why)


class ProfileError(SysbenchError):
    """A TOML file that cannot be read as a profile; names the file and the place."""

    exit_code = 2


class NotFoundError(SysbenchError):
    """No run, preset or file by that name."""

    exit_code = 2


class DeviceBusyError(SysbenchError):
    """Another measuring run holds the device."""


class MissingLibraryError(SysbenchError):
    """A command needs a library that is not installed; the message has what installs it."""


class DamagedFileError(SysbenchError):
    """A file whose content does not match its name: truncated, foreign or hostile."""


class NewerFileError(DamagedFileError):
    """A file of a later version, which this one leaves as it is."""


class ForeignFileError(DamagedFileError):
    """A file that cannot be inspected: absent, of an unknown kind, damaged, hostile, or too large
    for the memory that decoding may take."""

    exit_code = 2


class ClusterError(SysbenchError):
    """The scheduler of a cluster refuses, does not answer, or is not there."""


class WorkerFailed(SysbenchError):
    """A pass ended without its result; the message has the reason."""


class ModelError(SysbenchError):
    """A model of the user's that does not keep to what a model is here."""


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"
