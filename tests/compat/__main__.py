"""Tries every combination of ``combinations.toml`` and writes ``docs/compatibility.md``.

``make compat``, or ``python -m tests.compat [--row NAME ...]``. A row that ended on the sources at
hand is not tried again unless it is named, so a call that was stopped goes on where it was. Results
are kept in ``results.json``, so that another clone goes on, too, and keeps what the page says.
Environments and logs lie under ``build/compat``, where a Python's tested set stays for the next
call; ``make clean`` removes it. It takes an index for pip, 8 GiB of disk, and the interpreters of
the rows, on PATH or of pyenv; a row whose interpreter is absent says so.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from tests.compat.combinations import ROOT, Combinations, Row, load_combinations
from tests.compat.environment import Environment, NotInstallable, interpreter, make_base, make_row
from tests.compat.page import Failure, Result, page

BUILD = ROOT / "build" / "compat"
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = Path(__file__).with_name("results.json")
SOURCES = ("core", "tui", "profiles", "tests", "pyproject.toml", "setup.py", "constraints.txt")
NOT_PASSED_ON = {
    *("PYTHONPATH", "VIRTUAL_ENV"),
    "PYTHONDONTWRITEBYTECODE",  # each of hundreds of processes would compile our modules again
}
LEAST_FREE_BYTES = 8 * 2**30
MOST_SECONDS = 3600


def main(arguments: Sequence[str] | None = None) -> int:
    """Try rows, write the page; 1 if a row that was tried did not pass."""
    combinations = load_combinations()
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("--row", action="append", choices=[row.name for row in combinations.rows])
    named = parser.parse_args(arguments).row
    keys = keys_of(combinations)
    results = load_results(combinations, RESULTS)
    todo = [
        row
        for row in combinations.rows
        if (row.name in named if named else is_due(results.get(row.name), keys[row.name]))
    ]
    for row in todo:
        print(f"{row.name} …", flush=True)
        result = try_row(row, combinations, keys, results)
        results[row.name] = result
        keep(results, RESULTS)
        PAGE.write_text(page(combinations, results, keys), encoding="utf-8")
        print(*reported(result), sep="\n", flush=True)
    PAGE.write_text(page(combinations, results, keys), encoding="utf-8")
    return int(any(not results[row.name].is_green for row in todo))


def reported(result: Result) -> Iterator[str]:
    """Lines of a result for the terminal."""
    yield f"  {result.outcome} in {result.seconds:.0f} s, {result.passed} tests green"
    yield from (f"  {failure.test}: {failure.message}" for failure in result.failures)
    if result.obstacle:
        yield f"  {result.obstacle}"


def keys_of(combinations: Combinations) -> dict[str, str]:
    """What each row's result is of: the row, its tests, and every source that could change it."""
    sources = hashlib.sha256()
    for path in _source_files():
        sources.update(path.relative_to(ROOT).as_posix().encode())
        sources.update(path.read_bytes())
    keys: dict[str, str] = {}
    for row in combinations.rows:
        digest = sources.copy()
        digest.update(msgspec.json.encode([row, combinations.tests_of(row)]))
        keys[row.name] = digest.hexdigest()[:16]
    return keys


def _source_files() -> Iterator[Path]:
    for name in SOURCES:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.is_file() and not {"__pycache__", "compat"} & set(parts):
                yield path


def is_due(result: Result | None, key: str) -> bool:
    """Whether a row has to be tried: new, of other sources, or never begun."""
    return result is None or result.key != key or bool(result.obstacle)


def load_results(combinations: Combinations, path: Path) -> dict[str, Result]:
    """What earlier calls kept of the rows that are still there, by name, in their order."""
    if not path.exists():
        return {}
    kept = {one.name: one for one in msgspec.json.decode(path.read_bytes(), type=list[Result])}
    return {row.name: kept[row.name] for row in combinations.rows if row.name in kept}


def keep(results: Mapping[str, Result], path: Path) -> None:
    """Write results where ``load_results`` finds them."""
    in_order = [results[name] for name in sorted(results)]
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(in_order)) + b"\n")
    new.replace(path)


def try_row(
    row: Row, combinations: Combinations, keys: Mapping[str, str], results: Mapping[str, Result]
) -> Result:
    """Make the row's environment, run its tests there, remove it."""
    begun = Result(
        name=row.name,
        key=keys[row.name],
        date=datetime.now(UTC).date().isoformat(),
        machine=f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}, "
        f"{os.cpu_count()} processors",
    )
    python = interpreter(row.python)
    if python is None:
        return _replace(begun, obstacle=f"no Python {row.python} on this machine")
    BUILD.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(BUILD).free) < LEAST_FREE_BYTES:
        return _replace(begun, obstacle=f"{free / 2**30:.1f} GiB of disk free, 8 are needed")
    folder = BUILD / "rows" / row.slug
    try:
        base = make_base(python, BUILD / "bases" / row.python)
        made = make_row(base, folder, row)
        patch = made.says("import platform; print(platform.python_version())").strip()
        begun = _replace(
            begun,
            versions={**made.versions(), "python": patch},
            torch_build=made.torch_build(),
        )
        for other in combinations.rows:
            same = results.get(other.name)
            if same is not None and stands_for(other, same, row, begun, keys):
                return _replace(same, name=row.name, key=begun.key, same_as=other.name)
        return run_tests(made, combinations.tests_of(row), begun, BUILD / "logs" / row.slug)
    except NotInstallable as error:
        return _replace(begun, obstacle=f"cannot be installed: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stands_for(
    other: Row, result: Result, row: Row, begun: Result, keys: Mapping[str, str]
) -> bool:
    """Whether another row's result is of these sources and versions and of at least these tests."""
    return (
        other.name != row.name
        and result.key == keys[other.name]
        and (result.versions, result.obstacle) == (begun.versions, "")
        and set(row.sets) <= set(other.sets)
    )


def run_tests(environment: Environment, tests: Sequence[str], begun: Result, log: Path) -> Result:
    """pytest in an environment; its output beside its report, ``LOG.txt`` and ``LOG.xml``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    report, text = log.with_name(f"{log.name}.xml"), log.with_name(f"{log.name}.txt")
    report.unlink(missing_ok=True)
    environ = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
    command = [str(environment.python), "-P", "-m", "pytest", "-q", "-m", "not gpu"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    start = time.monotonic()
    with text.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ | {"OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ending = f"ended with {process.wait(MOST_SECONDS)}"
        except subprocess.TimeoutExpired:
            ending = f"did not end within {MOST_SECONDS} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    ended = _replace(begun, seconds=round(time.monotonic() - start, 1))
    if not report.exists():
        tail = text.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        return _replace(ended, obstacle=f"pytest {ending}: {' '.join(tail)}")
    return read_report(report, ended)


def read_report(report: Path, begun: Result) -> Result:
    """A result with what JUnit's report of pytest says."""
    passed, failures, skipped = 0, [], dict[str, int]()
    for case in ElementTree.parse(report).iter("testcase"):
        found = {child.tag: child.get("message", "") for child in case}
        test = f"{case.get('classname', '')}::{case.get('name', '')}".lstrip(":")
        bad = found.get("failure", found.get("error"))
        if bad is not None:
            failures.append(Failure(test, (bad.strip().splitlines() or [""])[0][:300]))
        elif "skipped" in found:
            skipped[found["skipped"]] = skipped.get(found["skipped"], 0) + 1
        else:
            passed += 1
    return _replace(begun, passed=passed, failures=failures, skipped=skipped)


def _replace(result: Result, **changes: object) -> Result:
    return msgspec.structs.replace(result, **changes)


if __name__ == "__main__":
    sys.exit(main())
