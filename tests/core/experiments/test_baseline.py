"""Baselines on disk: names, copies, damage."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError, WorkerFailed
from sysbench.core.experiments.baselines import (
    baseline_path,
    check_name,
    delete_baseline,
    judge_run,
    list_baselines,
    load_baseline,
    save_baseline,
)
from sysbench.core.storage import baselines_folder
from tests import factories

RECORD = factories.record_of_rounds([10.0, 10.1, 9.9])


def test_a_baseline_is_the_whole_record(tmp_path: Path) -> None:
    path = save_baseline("main", RECORD, root=tmp_path)
    baseline = load_baseline("main", root=tmp_path)
    assert path == tmp_path / "baselines" / "main.json"
    assert baseline.record == RECORD
    assert baseline.rounds_ms == [10.0, 10.1, 9.9]
    assert baseline.machine == {"device_name": "one", "torch": None, "threads": None}
    assert [row.name for row in list_baselines(tmp_path)] == ["main"]


def test_a_file_of_ones_own_takes_the_place_of_the_home(tmp_path: Path) -> None:
    file = tmp_path / "gate.json"
    save_baseline("main", RECORD, file=file, root=tmp_path / "home")
    assert load_baseline("main", file=file).run == RECORD.id
    assert not baselines_folder(tmp_path / "home").exists()
    with pytest.raises(NotFoundError, match="contains the baseline 'main', not 'other'"):
        load_baseline("other", file=file)


def test_one_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    save_baseline("main", RECORD, root=tmp_path)
    other = msgspec.structs.replace(RECORD, id="another")
    with pytest.raises(SpecError, match="--force"):
        save_baseline("main", other, root=tmp_path)
    assert load_baseline("main", root=tmp_path).run == RECORD.id
    save_baseline("main", other, force=True, root=tmp_path)
    assert load_baseline("main", root=tmp_path).run == "another"
    assert len(list(baselines_folder(tmp_path).iterdir())) == 1


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../a", "/a", "a\\b", "a\n", "a\0", "é", "x" * 65]
)
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    for act in (load_baseline, delete_baseline):
        with pytest.raises(SpecError, match="NAME"):
            act(name, root=tmp_path)
    with pytest.raises(SpecError, match="NAME"):
        save_baseline(name, RECORD, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.text("a0./\\-_\n\0é", max_size=8))
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    try:
        check_name(name)
    except SpecError:
        return
    path = baseline_path(name, Path("/home"))
    assert path.parent == Path("/home/baselines")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"name": "main"}',
        b"[" * 100_000,
        msgspec.json.encode({"name": "main", "saved_ns": "now"}),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = save_baseline("main", RECORD, root=tmp_path)
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=str(path)):
        load_baseline("main", root=tmp_path)
    (row,) = list_baselines(tmp_path)
    assert (row.name, row.baseline) == ("main", None)
    assert str(path) in row.problem
    assert delete_baseline("main", tmp_path) == path
    assert list_baselines(tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"median_ms": 10.1', '"median_ms": -10.1'),
        ('"outcome": "finished"', '"outcome": "killed"'),
        ('"schema": 1', '"schema": 99'),
    ],
)
def test_times_that_cannot_be_are_damage(tmp_path: Path, before: str, after: str) -> None:
    path = save_baseline("main", RECORD, root=tmp_path)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(DamagedFileError, match=str(path)):
        load_baseline("main", root=tmp_path)


def test_one_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    path = save_baseline("main", RECORD, root=tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"median_ms": 10.1', '"median_ms": 11.1'))
    with pytest.raises(DamagedFileError, match="changed after it was saved"):
        load_baseline("main", root=tmp_path)
    path.write_text(json.dumps(json.loads(text), sort_keys=True))
    assert load_baseline("main", root=tmp_path).record == RECORD, "its layout is nobody's business"
    content = json.loads(text)
    del content["digest"]
    path.write_text(json.dumps(content))
    assert load_baseline("main", root=tmp_path).record == RECORD, "older ones have no digest"


def test_what_has_no_step_time_is_no_baseline(tmp_path: Path) -> None:
    running = msgspec.structs.replace(RECORD, status="running")
    disturbed = factories.record_of_rounds([10.0, 10.1], disturbed="java came to the device")
    for record in (running, factories.record(), disturbed):
        with pytest.raises(SpecError, match="RUN"):
            save_baseline("main", record, root=tmp_path)
    with pytest.raises(WorkerFailed):
        save_baseline("main", factories.record(status="failed"), root=tmp_path)
    with pytest.raises(NotFoundError, match="main"):
        load_baseline("main", root=tmp_path)


def test_a_run_is_not_judged_against_itself(tmp_path: Path) -> None:
    save_baseline("main", RECORD, root=tmp_path)
    with pytest.raises(SpecError, match="another run"):
        judge_run(load_baseline("main", root=tmp_path), RECORD, 0.03, root=tmp_path)
