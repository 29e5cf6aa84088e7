"""Exceptions of the engine, with messages for the user.

A message has the fault, its place and the remedy. ``exit_code`` is the command line's exit code.
"""

from __future__ import annotations


class SysbenchError(Exception):
    """Base class of all errors that the engine reports."""

    exit_code = 1


class SpecError(SysbenchError, ValueError):
    """A spec, profile or option that cannot be measured as written.

    Attributes:
        field: Dotted name of the key at fault.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        name = field if field.isprintable() else _short(field)
        super().__init__(f"{name} = {_short(value)}: {allowed}")


class InterpreterError(SpecError):
    """A Python interpreter that cannot run workers; ``allowed`` has the reason and any remedy."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__("python", path, why)


class ProfileError(SysbenchError):
    """A TOML file that cannot be read as a profile."""

    exit_code = 2


class NotFoundError(SysbenchError):
    exit_code = 2


class DeviceBusyError(SysbenchError):
    """Another run is measuring on the device."""


class MissingLibraryError(SysbenchError):
    """A command needs a library that is not installed; the message has the install command."""


class DamagedFileError(SysbenchError):
    """A file whose content is truncated, hostile or of another kind than its name."""


class NewerFileError(DamagedFileError):
    """A file that a later version wrote."""


class ForeignFileError(DamagedFileError):
    """An imported file that is absent, of an unknown kind, damaged, hostile, or too large."""

    exit_code = 2


class ClusterError(SysbenchError):
    """The cluster's scheduler refuses, does not answer, or does not exist."""


class WorkerFailed(SysbenchError):
    """A pass ended without its result; the message has the reason."""


class ModelError(SysbenchError):
    """A user's model that does not have the required interface."""


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"
