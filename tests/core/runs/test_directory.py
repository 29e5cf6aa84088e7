"""Run directories: naming, finding, atomic writes, locks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, DeviceBusyError, NotFoundError
from sysbench.core.runs.directory import (
    RunDirectory,
    create_run,
    find_run,
    list_runs,
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
