"""What came out of a row, and ``docs/compatibility.md`` made of all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tests.compat.combinations import (
    Combinations,
    Row,
    constraints,
    dependencies,
    lower_bounds,
    package_of,
    pins_bound,
)

HEAD = """# Compatibility

<!-- Made by `make compat`. Do not edit. -->

Each row is one virtual environment with one combination of versions, in which a small set of tests
ran: a run of `tiny` with every pass, `show`, `estimate`, `compare` and `inspect`, the screens under
a pilot, `doctor` against a stub of NVIDIA's library. Rows of Python and torch have more: a compiled
run, counts of traces and of memory. `tests/compat/combinations.toml` has the rows and
their tests. No row needs a GPU, and none says anything of one. What a row does not name has the
version of `constraints.txt`.
"""
STAND_INS = """
Where the index has a CUDA build of torch only, the CUDA libraries that it links are replaced by
libraries whose functions all answer "no CUDA-capable device". The build imports with them, and
without a GPU nothing calls them.
"""
COLUMNS = (
    *("combination", "Python", "differs from the tested set", "torch"),
    *("result", "passed", "s", "date"),
)


class Failure(msgspec.Struct, frozen=True):
    """A test that failed, and the first line of why."""

    test: str
    message: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a row ended. ``obstacle``: why no test ran; ``same_as``: the row that stands for it."""

    name: str
    key: str
    date: str
    machine: str
    versions: dict[str, str] = {}
    torch_build: str = ""
    seconds: float = 0.0
    passed: int = 0
    failures: list[Failure] = []
    skipped: dict[str, int] = {}
    obstacle: str = ""
    same_as: str = ""

    @property
    def is_green(self) -> bool:
        """Tests ran, and none failed."""
        return bool(self.passed) and not self.failures and not self.obstacle

    @property
    def outcome(self) -> str:
        """In a few words."""
        if self.obstacle:
            return "**not run**"
        if self.failures:
            return f"**{len(self.failures)} failed**"
        if not self.passed:
            return "**no test ran**"
        return f"as *{self.same_as}*" if self.same_as else "passed"


def page(combinations: Combinations, results: Mapping[str, Result], keys: Mapping[str, str]) -> str:
    """The whole page, of results as the last tries left them.

    Args:
        combinations: The table.
        results: What is known, by the name of the row.
        keys: What each row's result has to be of, to be of the sources at hand.
    """
    rows = combinations.rows
    known = [results[row.name] for row in rows if row.name in results]
    parts = [HEAD]
    if any("stand-ins" in result.torch_build for result in known):
        parts.append(STAND_INS)
    parts.append(_machines(known))
    parts.append(_table(rows, results, keys))
    parts.append(_bounds(rows, results))
    parts.append(_not_green(known))
    parts.append(_skipped(known))
    return "\n".join(part for part in parts if part)


def _machines(results: Iterable[Result]) -> str:
    machines = sorted({result.machine for result in results})
    return "".join(f"Machine: {machine}.\n" for machine in machines)


def _table(rows: Iterable[Row], results: Mapping[str, Result], keys: Mapping[str, str]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|---:|---:|---|"]
    tested = dict(pin.split("==") for pin in constraints())
    is_any_older = False
    for row in rows:
        result = results.get(row.name)
        if result is None:
            lines.append(f"| {row.name} | {row.python} | | | **not run yet** | | | |")
            continue
        is_older = result.key != keys[row.name]
        is_any_older |= is_older
        cells = [
            row.name,
            result.versions.get("python", row.python),
            _differing(row, result.versions, tested),
            f"{result.versions.get('torch', '')} {result.torch_build}".strip(),
            result.outcome + (" †" if is_older else ""),
            str(result.passed or ""),
            f"{result.seconds:.0f}" if result.seconds else "",
            result.date,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if is_any_older:
        lines += ["", "† run on earlier sources than those that this page was written from."]
    return "\n".join(lines) + "\n"


def _differing(row: Row, versions: Mapping[str, str], tested: Mapping[str, str]) -> str:
    """Versions of direct dependencies that are not the tested ones, and all that the row names."""
    direct = {package_of(requirement) for requirement in dependencies()} - {"torch"}
    named = {package_of(pin) for pin in (*row.pins, *row.newest)} - {"torch"}
    shown = [
        f"{name} {versions[name]}"
        for name in sorted(direct | named)
        if name in versions and (name in named or versions[name] != tested.get(name))
    ]
    return ", ".join(shown)


def _bounds(rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    lines = ["## Lower bounds", "", "| promised | held by | result |", "|---|---|---|"]
    for package, version in lower_bounds().items():
        for row in rows:
            if pins_bound(row, package, version):
                outcome = results[row.name].outcome if row.name in results else "**not run yet**"
                lines.append(f"| {package} >= {version} | {row.name} | {outcome} |")
    return "\n".join(lines) + "\n"


def _not_green(results: Iterable[Result]) -> str:
    lines: list[str] = []
    for result in results:
        if result.obstacle:
            lines += [f"- **{result.name}**: {_one_line(result.obstacle)}"]
        elif result.failures:
            lines += [f"- **{result.name}**:"]
            lines += [f"  - `{one.test}`: {_one_line(one.message)}" for one in result.failures]
    return "\n".join(["## What failed", "", *(lines or ["Nothing."])]) + "\n"


def _skipped(results: Iterable[Result]) -> str:
    """Reasons to skip a test, each with the rows that had it."""
    rows: dict[str, list[str]] = {}
    for result in results:
        for reason in result.skipped:
            rows.setdefault(reason, []).append(result.name)
    lines = [f"- {_one_line(reason)}: {', '.join(names)}" for reason, names in rows.items()]
    return "\n".join(["## Skipped tests", "", *lines]) + "\n" if lines else ""


def _one_line(text: str) -> str:
    """Text as one line that Markdown and a reader of paths take literally."""
    return " ".join(text.replace("`", "'").replace("|", "\\|").split())[:300]
