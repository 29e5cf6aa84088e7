"""The table of combinations is whole, and its page says what came out and no more."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.compat.__main__ import (
    is_due,
    keep,
    keys_of,
    load_results,
    read_report,
    run_tests,
    stands_for,
)
from tests.compat.combinations import (
    ROOT,
    Combinations,
    Row,
    load_combinations,
    lower_bounds,
    pins_bound,
)
from tests.compat.cuda_stand_ins import add_stand_ins, remove_stand_ins
from tests.compat.environment import Environment
from tests.compat.page import Failure, Result, page

TABLE = load_combinations()


def result(name: str, **changes: object) -> Result:
    usual = Result(name=name, key="now", date="2027-01-31", machine="Linux", passed=7)
    return msgspec.structs.replace(usual, **changes)


@pytest.mark.parametrize("package", sorted(lower_bounds()))
def test_every_lower_bound_has_a_row_that_holds_it(package: str) -> None:
    version = lower_bounds()[package]
    assert any(pins_bound(row, package, version) for row in TABLE.rows), f"{package}>={version}"


def test_rows_have_names_and_files_of_their_own() -> None:
    assert len({row.slug for row in TABLE.rows}) == len(TABLE.rows)


@pytest.mark.parametrize("test", sorted({one for row in TABLE.rows for one in TABLE.tests_of(row)}))
def test_every_test_that_is_named_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert (ROOT / path).exists()
    if name:
        nodes = ast.parse((ROOT / path).read_text()).body
        assert name in {getattr(node, "name", "") for node in nodes}


def test_a_row_is_tried_again_when_its_sources_tests_or_versions_change() -> None:
    row = TABLE.rows[0]
    keys = keys_of(TABLE)
    ended = result(row.name, key=keys[row.name])
    assert not is_due(ended, keys[row.name])
    assert is_due(None, keys[row.name])
    assert is_due(result(row.name, obstacle="no Python"), "now")
    for changed in (
        msgspec.structs.replace(TABLE, tests={**TABLE.tests, "common": ("tests/test_docs.py",)}),
        msgspec.structs.replace(TABLE, rows=(msgspec.structs.replace(row, pins=("rich==14",)),)),
    ):
        assert is_due(ended, keys_of(changed)[row.name])


def test_results_are_there_for_the_next_call_and_only_of_rows_that_are_left(tmp_path: Path) -> None:
    path, row = tmp_path / "results.json", TABLE.rows[1]
    assert load_results(TABLE, path) == {}
    kept = result(row.name, failures=[Failure("tests.a::b", "why")], versions={"rich": "15"})
    keep({"gone": result("gone"), row.name: kept}, path)
    assert load_results(TABLE, path) == {row.name: kept}
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"]


def test_only_a_result_of_the_same_versions_and_tests_stands_for_another() -> None:
    one, other = Row(name="one", sets=("torch",)), Row(name="other")
    keys = {"one": "now", "other": "now"}
    begun = result("other", versions={"rich": "15"})
    ended = result("one", versions={"rich": "15"})
    assert stands_for(one, ended, other, begun, keys)
    assert not stands_for(other, begun, one, ended, keys), "it lacks the tests of torch"
    assert not stands_for(one, result("one", versions={"rich": "14"}), other, begun, keys)
    assert not stands_for(one, ended, other, begun, {"one": "later"})


def test_the_page_tells_green_failed_absent_and_outdated_rows_apart() -> None:
    rows = tuple(Row(name=name) for name in ("green", "red", "absent", "new", "old"))
    results = {
        "green": result("green"),
        "red": result("red", failures=[Failure("tests.a::b", "assert `x` | y\nz")]),
        "absent": result("absent", passed=0, obstacle="no Python 3.15 on this machine"),
        "old": result("old", key="earlier"),
    }
    combinations = Combinations(tests={"common": ()}, rows=rows)
    text = page(combinations, results, dict.fromkeys((row.name for row in rows), "now"))
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    assert "| passed | 7 |" in lines["green"] and "†" not in lines["green"]
    assert "**1 failed**" in lines["red"] and "passed | 7" not in lines["red"]
    assert "**not run**" in lines["absent"]
    assert "**not run yet**" in lines["new"]
    assert "passed †" in lines["old"]
    assert "  - `tests.a::b`: assert 'x' \\| y z" in text
    assert "- **absent**: no Python 3.15 on this machine" in text


TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("no such thing here")
"""


def test_what_pytest_reports_becomes_the_result(tmp_path: Path) -> None:
    tests = tmp_path / "test_three.py"
    tests.write_text(TESTS)
    (tmp_path / "pytest.ini").touch()
    here, begun = Environment(Path(sys.prefix)), result("one", passed=0)
    ended = run_tests(here, [str(tests)], begun, tmp_path / "logs" / "one")
    assert (ended.passed, ended.skipped, ended.obstacle) == (1, {"no such thing here": 1}, "")
    assert ended.failures == [Failure("test_three::test_fails", "assert 1 == 2")]
    refused = run_tests(here, [str(tmp_path / "none.py")], begun, tmp_path / "logs" / "two")
    assert not refused.is_green


def test_an_interpreter_without_pytest_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho no pytest\nexit 7\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    ended = run_tests(Environment(tmp_path), [], result("one", passed=0), tmp_path / "logs" / "one")
    assert ended.obstacle == "pytest ended with 7: no pytest"


def test_a_report_is_counted_by_outcome(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="one"/>'
        '<testcase classname="tests.a" name="two"><failure message="assert 1&#10;more"/></testcase>'
        '<testcase classname="" name="tests.b"><error message="collection failure"/></testcase>'
        '<testcase classname="tests.a" name="three"><skipped message="no g++"/></testcase>'
        "</testsuite></testsuites>"
    )
    read = read_report(report, result("one", passed=0))
    assert (read.passed, read.skipped, read.is_green) == (1, {"no g++": 1}, False)
    assert read.failures == [
        Failure("tests.a::two", "assert 1"),
        Failure("tests.b", "collection failure"),
    ]


NEEDS = {
    "libcutest.so.1": "int cuCount(int *count) { *count = 4; return 0; }",
    "libuser.so": "int cuCount(int *count); int ask(void) { int n; return cuCount(&n); }",
}


@pytest.mark.skipif(
    not all(map(shutil.which, ("cc", "nm", "objdump", "ldd"))), reason="no C compiler and binutils"
)
def test_a_library_loads_without_the_cuda_library_that_it_links(tmp_path: Path) -> None:
    for name, source in NEEDS.items():
        version = tmp_path / "version"
        version.write_text(f"{name} {{ *; }};")
        options = ["-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name},-z,now"]
        options += [f"-Wl,-rpath,$ORIGIN,--version-script={version}"]
        linked = ["-x", "none", *map(str, tmp_path.glob("libcutest.so.1"))]
        command = ["cc", *options, *linked, "-o", str(tmp_path / name)]
        subprocess.run(command, input=source, text=True, check=True)
    ask = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'libuser.so')!r}).ask())"

    def asked() -> tuple[str, str]:
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
        return done.stdout.strip(), done.stderr

    assert asked() == ("0", "")
    (tmp_path / "libcutest.so.1").unlink()
    assert "libcutest.so.1" in asked()[1]
    assert add_stand_ins(tmp_path) == ["libcutest.so.1"]
    assert asked() == ("100", ""), "no device, and not a word of the linker"
    remove_stand_ins(tmp_path)
    assert "libcutest.so.1" in asked()[1]
