"""The check in stages: what a start does, leaves out, takes up, and writes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sysbench.core import RunSpec, SysbenchError
from tests.gpu import __main__ as check
from tests.gpu.page import Ended, ended, keep, lines_path
from tests.gpu.stages import bare_loop
from tests.gpu.stages import stage as stages
from tests.gpu.stages.memory_cells import AXES, in_order
from tests.gpu.stages.registry import STAGES, stage_named
from tests.gpu.stages.stage import NO_TIME, ROOT, Bench, Row
from tests.null_gpu.conftest import NullGpu
from tests.null_gpu.conftest import make_null_gpu as make_null_gpu
from tests.null_gpu.conftest import null_gpu as null_gpu
from tests.null_gpu.place import MARK

RATES = stage_named("rates")


def bench(folder: Path, *, is_null: bool = False) -> Bench:
    return Bench("rates", "cpu", is_null, True, folder, folder / "fixtures", float("inf"))


def test_a_row_is_made_once_whatever_stopped_the_stage(tmp_path: Path) -> None:
    made: Iterator[Row] = iter([["a", "1"], ["b", "2"]])
    assert bench(tmp_path).once("a", lambda: next(made)) == ["a", "1"]
    assert bench(tmp_path).once("a", lambda: next(made)) == ["a", "1"]
    assert bench(tmp_path).once("b", lambda: next(made)) == ["b", "2"]


def test_no_time_of_a_null_gpu_is_shown(tmp_path: Path) -> None:
    assert bench(tmp_path).time(1.5, "{:.1f} ms") == "1.5 ms"
    assert bench(tmp_path, is_null=True).time(1.5, "{:.1f} ms") == NO_TIME


def test_only_small_recordings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench(tmp_path).keep(b"x" * 500_000, "nvml.json").startswith("Fixture kept: nvml.json")
    monkeypatch.setattr(stages, "LARGEST_FIXTURE_BYTES", 10)
    assert "was not kept" in bench(tmp_path).keep(b"y" * 500, "trace.json.gz")
    assert [path.name for path in (tmp_path / "fixtures").iterdir()] == ["nvml.json.gz"]


def test_every_cell_of_the_memory_table_has_its_turn_and_what_it_is_held_against() -> None:
    cells = in_order()
    assert len({tuple(cell[axis] for axis in AXES) for cell in cells}) == len(cells) > 200
    assert all(int(cell["allocated_bytes"]) and int(cell["reserved_bytes"]) for cell in cells)
    first = cells[:30]  # each model with each kind of step and precision, contexts mixed
    assert len({(cell["model"], cell["step"], cell["precision"]) for cell in first}) == 30
    assert len({cell["context"] for cell in first}) > 2


def test_the_page_says_how_each_stage_ended_and_what_is_done_is_left_out(tmp_path: Path) -> None:
    folder, out = tmp_path / "kept", tmp_path / "pages"
    folder.mkdir()
    keep(folder, RATES, Ended("done", 12.0))
    lines_path(folder, RATES).write_text("| product fp32 | 1 TFLOP/s |\n")
    arguments = ["--device", "cpu", "--folder", str(folder), "--out", str(out)]
    assert check.main([*arguments, "--stages", "timing,rates"]) == 1  # no GPU for the first
    (path,) = out.iterdir()
    page = path.read_text()
    assert "| timing | needs a GPU |" in page
    assert "| rates | done | 12 |" in page
    assert "| tests | not run |" in page
    assert f"## {RATES.title}\n\n| product fp32 |" in page
    # Asked for again, its rows are gone before there is time to make new ones.
    again = [*arguments, "--stages", "rates", "--again", "rates", "--minutes", "0"]
    assert check.main(again) == 1
    assert "| rates | not run |" in path.read_text()


def test_a_stage_is_cut_off_at_its_limit_and_one_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"device": "cpu", "is_null": False, "is_quick": True, "fixtures": str(tmp_path)}
    asked = fields | {"folder": str(tmp_path)}
    how = check.run_stage(RATES, asked, tmp_path, 0.2, lambda: None)
    assert how.outcome == "cut off"
    how = check.run_stage(RATES, {}, tmp_path, 60, lambda: None)
    assert (how.outcome, how.detail) == ("failed", "KeyError: 'device'")
    assert ended(tmp_path, RATES) is None  # the caller keeps it


@pytest.mark.null_gpu
def test_a_rehearsal_on_the_null_gpu_is_marked_and_has_no_times(
    null_gpu: NullGpu, tmp_path: Path
) -> None:
    arguments = ["--quick", "--folder", str(tmp_path)]
    folder = tmp_path / "quick"
    done = subprocess.run(
        [str(null_gpu.where.python), "-m", "tests.gpu", *arguments],
        env=null_gpu.environment(pace=0.001),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = {*folder.glob("*.md")} - {lines_path(folder, stage) for stage in STAGES}
    page = path.read_text()
    assert page.startswith(f"# NVIDIA H100 80GB HBM3 {MARK}\n\n**null GPU: a rehearsal.**")
    assert all(f"| {stage.name} | done |" in page for stage in STAGES)
    assert "2 cells: 2 ended as there, 2 have its allocated and reserved MiB." in page
    assert NO_TIME in page
    names = {fixture.name for fixture in (folder / "fixtures").iterdir()}
    assert names == {"trace.json.gz", "snapshot.pickle.gz", "nvml.json.gz"}


@pytest.mark.null_gpu
def test_no_page_of_a_null_gpu_goes_among_those_of_cards(null_gpu: NullGpu) -> None:
    done = subprocess.run(
        [str(null_gpu.where.python), "-m", "tests.gpu", "--out", str(ROOT / "docs" / "validation")],
        env=null_gpu.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "no page of a null GPU goes there" in done.stderr


def test_without_a_gpu_nothing_is_checked() -> None:
    with pytest.raises(SysbenchError):
        check.main(["--device", "cuda:99"])


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.abort()"])
def test_a_bare_loop_that_aborts_as_it_exits_has_measured(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os, sys; print('note'); print('{{\"wall\": 2.5}}', flush=True); {ending}"
    monkeypatch.setattr(bare_loop, "BARE", code)
    assert bare_loop._bare(RunSpec(device="cpu")) == {"wall": 2.5}


def test_a_bare_loop_that_fails_before_its_result_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bare_loop, "BARE", "raise ValueError('no device')")
    with pytest.raises(RuntimeError, match="ValueError: no device"):
        bare_loop._bare(RunSpec(device="cpu"))
    monkeypatch.setattr(bare_loop, "BARE", "import os; os.abort()")
    with pytest.raises(RuntimeError, match="exit code -6"):
        bare_loop._bare(RunSpec(device="cpu"))
