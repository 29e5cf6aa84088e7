"""Reads a TOML file key by key; collects every mistake with its file, key and remedy."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...errors import ProfileError, SpecError

LARGEST_FILE_BYTES = 2**18


class Problems:
    """The mistakes of a file; `check` raises them together."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: list[str] = []

    def add(self, key: str, value: object, allowed: str) -> None:
        """Add a value that is not allowed under a dotted key."""
        self.add_error(SpecError(key, value, allowed))

    def missing(self, key: str, allowed: str) -> None:
        """Add an absent dotted key."""
        self.lines.append(f"{self.file}: {key} is missing: {allowed}")

    def add_error(self, error: SpecError, key: str = "") -> None:
        """Add the error of another check; ``key`` is the dotted key that it checked."""
        where = key or error.field
        text = str(SpecError(where, error.value, error.allowed))
        self.lines.append(f"{self.file}: {text}")

    def check(self) -> None:
        """Raise ProfileError with a line for each mistake, if there is any."""
        if self.lines:
            raise ProfileError("\n".join(self.lines))


class Section:
    """A table of the file under its dotted key; absent and wrong values read as empty."""

    def __init__(self, problems: Problems, key: str, value: object) -> None:
        self.problems = problems
        self.key = key
        self.values: dict[str, Any] = {}
        if isinstance(value, dict):
            self.values = value
        elif value is not None:
            problems.add(key, value, "a table of keys and values")

    def path(self, name: str) -> str:
        """The dotted key of one of its values."""
        return f"{self.key}.{name}" if self.key else name

    def invalid(self, name: str, allowed: str) -> None:
        """Add a mistake: the key's value is not allowed, or the key is absent."""
        if name in self.values:
            self.problems.add(self.path(name), self.values[name], allowed)
        else:
            self.problems.missing(self.path(name), allowed)

    def reject_unknown(self, allowed: Collection[str]) -> None:
        """Add a mistake for each key that is not allowed."""
        for name in self.values:
            if name not in allowed:
                close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]!r}? " if close else ""
                self.invalid(name, f"no such key; {hint}known: {', '.join(allowed)}")

    def text(self, name: str, *, required: bool = False) -> str:
        """A text; empty where there is none."""
        value = self.values.get(name, "")
        if not isinstance(value, str) or (required and not value.strip()):
            self.invalid(name, "a text")
            return ""
        return value

    def switch(self, name: str) -> bool:
        """True or false; false where there is none."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            self.invalid(name, "true or false")
        return value is True

    def require_unique(self, names: Collection[str], name: str = "name") -> None:
        """Add a mistake if the name repeats an earlier one."""
        if self.values.get(name) in names:
            self.invalid(name, "a name that no other one has")

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in a range."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.invalid(name, f"a whole number from {low} to {high}")
            return default
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.invalid(name, "a list of texts")
            return ()
        return tuple(value)

    def table(self, name: str) -> Section:
        """A table in this one."""
        return Section(self.problems, self.path(name), self.values.get(name))

    def tables(self, name: str) -> list[Section]:
        """A list of tables, each under its number from 1; other values are left out."""
        value = self.values.get(name, [])
        if not isinstance(value, list):
            self.invalid(name, "a list of tables")
            return []
        key = self.path(name)
        sections = [Section(self.problems, f"{key}[{n}]", item) for n, item in enumerate(value, 1)]
        return [
            section for section, item in zip(sections, value, strict=True) if isinstance(item, dict)
        ]


def read_toml(path: Path) -> Mapping[str, Any]:
    """The file's content.

    Raises:
        ProfileError: Absent, too large, not UTF-8, or not TOML; names the line.
    """
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ProfileError(f"{path}: larger than {LARGEST_FILE_BYTES // 1024} KiB, not a study")
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 text ({error.reason})") from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ProfileError(f"{path}: not TOML: {error}") from error
