"""Run directories: naming, finding, atomic writes, locks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, DeviceBusyError, NotFoundError
from sysbench.core.runs.run_directory import (
    RunDirectory,
    create_run,
    find_run,
    list_runs,
    newest_run,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import (
    home,
    lock_holder,
    locked,
    write_atomically,
)

SPEC = RunSpec(device="cpu")


def test_the_home_is_moved_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("SYSBENCH_HOME")
    assert home().name == "sysbench-tui"


def test_a_new_run_holds_its_spec_and_is_listed_first(tmp_path: Path) -> None:
    runs = [create_run(SPEC.changed(seed=seed), ["timing"], tmp_path) for seed in range(3)]
    assert {run.id for run in list_runs(tmp_path)} == {run.id for run in runs}
    header = runs[1].header()
    assert header.spec == SPEC.changed(seed=1)
    assert header.passes == ["timing"]
    assert not runs[1].is_live()


def test_runs_are_found_by_part_path_and_last(tmp_path: Path) -> None:
    run = create_run(SPEC, ["timing"], tmp_path)
    for text in (run.id, run.id[-4:], str(run.path), "last"):
        assert find_run(text, tmp_path).id == run.id
    with pytest.raises(NotFoundError, match="nothing-like-it"):
        find_run("nothing-like-it", tmp_path)
    create_run(SPEC, ["timing"], tmp_path)
    with pytest.raises(NotFoundError, match="ambiguous"):
        find_run("tiny", tmp_path)


def test_an_empty_home_lists_nothing(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "never") == []


def test_a_run_without_a_record_says_so(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"record\.json"):
        create_run(SPEC, ["timing"], tmp_path).record()
    with pytest.raises(DamagedFileError, match=r"run\.json"):
        RunDirectory(tmp_path / "absent").header()


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    path.chmod(0o644)
    with pytest.raises(TypeError):
        write_atomically(path, "text is not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_names_its_holder_and_frees_itself(tmp_path: Path) -> None:
    path = tmp_path / "cpu.lock"
    assert lock_holder(path) is None
    code = (
        "import sys; from pathlib import Path\n"
        "from sysbench.core.storage import locked\n"
        f"with locked(Path({str(path)!r})):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert lock_holder(path) == child.pid
        with (
            pytest.raises(DeviceBusyError, match=f"cpu is held by process {child.pid}"),
            locked(path, who="cpu"),
        ):
            pass
        child.kill()
        child.wait()
        assert lock_holder(path) is None
    with locked(path):
        assert lock_holder(path) is not None


def test_two_runs_that_draw_the_same_digits_have_folders_of_their_own(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("secrets.token_hex", lambda count: next(digits))
    monkeypatch.setattr("time.time_ns", lambda: 0)
    first, second = (create_run(RunSpec(model="tiny"), ["timing"]) for _ in range(2))
    assert (first.id[-4:], second.id[-4:]) == ("aaaa", "bbbb")


def created_at(monkeypatch: pytest.MonkeyPatch, t_ns: int, digits: str) -> RunDirectory:
    monkeypatch.setattr("secrets.token_hex", lambda count: digits)
    monkeypatch.setattr("time.time_ns", lambda: t_ns)
    return create_run(SPEC, ["timing"])


def test_the_last_of_two_runs_of_one_second_is_the_one_created_last(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created_at(monkeypatch, 10**18, "ffff")
    later = created_at(monkeypatch, 10**18 + 1, "0000")
    assert find_run("last").id == find_run("last~0").id == later.id


def test_runs_of_one_instant_are_counted_once_each(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {created_at(monkeypatch, 10**18, digits).id for digits in ("ff", "aa")}
    assert find_run("last").id == find_run("last~0").id
    assert {find_run("last").id, find_run("last~1").id} == runs


def test_runs_before_the_last_are_counted_by_their_creation(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [created_at(monkeypatch, 10**18 + n, digits) for n, digits in enumerate(("ff", "aa"))]
    assert [find_run(f"last~{back}").id for back in (0, 1)] == [runs[1].id, runs[0].id]
    for text in ("last~2", "last~", "last~x", f"last~{'9' * 12}"):
        with pytest.raises(NotFoundError):
            find_run(text)


def test_the_last_run_is_right_where_a_clock_passes_an_hour_twice(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    change_ns = 1_792_890_000 * 10**9  # 25 October 2026, 03:00 CEST becomes 02:00 CET
    before = created_at(monkeypatch, change_ns - 10**9, "0000")
    after = created_at(monkeypatch, change_ns + 10**9, "0000")
    monkeypatch.delenv("TZ")
    time.tzset()
    assert before.id > after.id, "the premise: ids alone give the wrong order"
    assert find_run("last").id == after.id


def test_the_newest_run_is_one_whose_header_can_be_read(sysbench_home: Path) -> None:
    assert newest_run() is None
    run = create_run(SPEC, ["timing"])
    (sysbench_home / "runs" / "zz").mkdir()
    assert find_run("last").id == run.id
