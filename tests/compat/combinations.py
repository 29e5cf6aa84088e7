"""The table of combinations as data: its rows, their tests, and the bounds they stand for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("combinations.toml")
COMMON = "common"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One combination; ``combinations.toml`` explains the keys."""

    name: str
    python: str = "3.11"
    pins: tuple[str, ...] = ()
    newest: tuple[str, ...] = ()
    freed: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    @property
    def lifted(self) -> set[str]:
        """Packages that constraints.txt does not decide."""
        return {*map(package_of, self.pins), *self.newest, *self.freed}

    @property
    def slug(self) -> str:
        """The name as a file's."""
        return re.sub(r"[^\w.]+", "-", self.name)


class Combinations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sets of tests by name, and the rows."""

    tests: dict[str, tuple[str, ...]]
    rows: tuple[Row, ...] = msgspec.field(name="row")

    def tests_of(self, row: Row) -> list[str]:
        """Paths and ids, for pytest.

        Raises:
            KeyError: The row names a set that is not there.
        """
        return [test for name in (COMMON, *row.sets) for test in self.tests[name]]


def load_combinations(path: Path = TABLE) -> Combinations:
    """The table of a file.

    Raises:
        msgspec.ValidationError: The file has another shape.
    """
    return msgspec.toml.decode(path.read_bytes(), type=Combinations)


def package_of(requirement: str) -> str:
    """The package's name in a requirement."""
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else requirement


def dependencies(extra: str = "") -> list[str]:
    """Requirements that pyproject.toml lists, of the program or of one of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"][extra] if extra else project["dependencies"])


def constraints() -> list[str]:
    """The tested set: ``package==version`` each."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if re.match(r"\w", line)]


def lower_bounds() -> dict[str, str]:
    """The oldest version that pyproject.toml promises, by package."""
    return {
        package_of(requirement): bound[1]
        for requirement in dependencies()
        if (bound := re.search(r">=([\d.]+)", requirement))
    }


def pins_bound(row: Row, package: str, version: str) -> bool:
    """Whether a row holds a package at that version: ``2.9`` is ``2.9``, ``2.9.0`` or ``2.9.*``."""
    exact = rf"{re.escape(package)}=={re.escape(version)}(\.0|\.\*)*"
    return any(re.fullmatch(exact, pin) for pin in row.pins)
