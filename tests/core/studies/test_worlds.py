"""Cells with a world or a card: a real study predicts them, refuses some, resumes."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import list_runs
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.studies import study_runner
from sysbench.core.studies.cell_values import Across, numeric_axis
from sysbench.core.studies.forecast import Forecaster
from sysbench.core.studies.schema import Study, load_study
from sysbench.core.studies.study_directory import find_study, open_study
from sysbench.core.studies.study_grid import expand, with_overrides
from sysbench.core.studies.study_report import STUDY_FORMATS, study_as, study_report
from sysbench.core.studies.study_runner import CellStarted, StudyEnded, run_study
from sysbench.tui.cli import main

STUDY = """
title = "Layouts of a tiny model"
passes = ["timing"]
repeat = 2
[fixed]
model = "tiny"
card = "h100"
context = 32
[axes]
world = ["dp=2", "tp=3", "tp=2,dp=1", "pp=2,microbatches=2"]
batch = [1, 2]
[[tables]]
name = "layouts"
columns = [
    { name = "peak", value = "predicted.peak_bytes" },
    { name = "allocated", value = "predicted.allocated_bytes" },
    { name = "reserved", value = "predicted.reserved_bytes" },
    { name = "fits", value = "predicted.verdict" },
    { name = "rank", value = "predicted.rank" },
    { name = "place", value = "predicted.place" },
    { name = "samples", value = "predicted.samples" },
    { name = "sent", value = "predicted.sent_bytes" },
    { name = "all-gathers", value = "predicted.sent[kind=all-gather].bytes" },
    { name = "ms", value = "timing.step.median_ms" },
    { name = "status", value = "measures.status" },
]
"""
WORLDS = ("dp=2", "tp=2", "pp=2,microbatches=2")
MICROBATCHES = "world.microbatches = 2: a divisor of batch=1"
HEADS = "world.tp = 3: a divisor of heads=4"


def document(*words: str) -> Any:
    """The JSON that a command prints."""
    written = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(written, write_through=True)):
        assert main([*words, "--json"]) == 0
        return json.loads(written.getvalue())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    (home / "worlds.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        yield home


@pytest.fixture(scope="module")
def ran(home: Path) -> Any:
    """The document of the study after it ran."""
    return document("study", str(home / "worlds.toml"))


def rows_of(table: Any) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_each_cell_is_predicted_or_has_the_reason_and_none_is_run(home: Path, ran: Any) -> None:
    counts = Counter(cell["status"] for cell in ran["cells"] if not cell["repeat"])
    assert counts == {"predicted": 5, "refused": 3}
    rows = rows_of(ran["tables"][0])
    assert [row["state"] for row in rows] == [
        *("predicted", "predicted", HEADS, HEADS),
        *("predicted", "predicted", MICROBATCHES, "predicted"),
    ]
    assert {row["ms"] for row in rows} <= {None, "n/a"}
    assert {row["hardware"] for row in rows if row["state"] == "predicted"} == {"H100 80GB HBM3"}
    assert list_runs(home) == []
    commands = rows_of(ran["commands"])
    assert commands[0]["command"] == (
        "sysbench-tui estimate --card h100 --world dp=2 batch=1 context=32"
    )


@pytest.mark.usefixtures("one_process")
def test_a_cell_has_the_figures_that_estimate_gives(ran: Any) -> None:
    by_world = {row["world"]: row for row in rows_of(ran["tables"][0]) if row["batch"] == "2"}
    for world in WORLDS:
        row = by_world[world]
        spec = ("tiny", "batch=2", "context=32")
        alone = document("estimate", *spec, "--card", "h100", "--world", world)
        worst = next(one for one in alone["ranks"] if one["rank"] == alone["worst_rank"])
        assert [row[name] for name in ("peak", "allocated", "reserved", "rank")] == [
            *(worst["peak_bytes"], worst["allocated_bytes"], worst["reserved_bytes"]),
            worst["rank"],
        ]
        assert (row["fits"] == "fits") is alone["fits"]
        sent = {one["kind"]: one["bytes"] for one in alone["sent"]}
        assert row["sent"] == sum(sent.values())
        assert (row["all-gathers"] or 0) == sent.get("all-gather", 0)
    assert by_world["pp=2,microbatches=2"]["place"] in ("pp=0", "pp=1")
    assert [by_world[world]["samples"] for world in WORLDS] == [4, 2, 2]


def test_every_format_says_that_the_cells_are_predicted(ran: Any) -> None:
    report = study_report(find_study("worlds"))
    texts = {kind: study_as(report, kind).decode() for kind in STUDY_FORMATS}
    assert all("predicted" in text and HEADS in text for text in texts.values())
    assert "cells predicted, not measured" in texts["html"]
    table = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["state"] for row in table].count("predicted") == 5
    figure = next(figure for figure in report.figures if figure.name == "predicted peak")
    assert [line.name for line in figure.series] == list(WORLDS)
    assert all(len(line.points) == 2 for line in figure.series[:2])


def test_a_resumed_study_predicts_nothing_again(
    home: Path, ran: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("predicted again")

    monkeypatch.setattr(study_runner, "predict_cell", refuse)
    assert document("study", str(home / "worlds.toml"))["tables"] == ran["tables"]


def test_a_cancelled_prediction_leaves_its_cell_empty(home: Path) -> None:
    study = with_overrides(load_study(home / "worlds.toml"), {"context": "64"})
    directory, cancel = open_study(study, home), Cancellation()
    for event in run_study(directory, expand(study), cancel=cancel):
        if isinstance(event, CellStarted):
            cancel.set()
    assert event == StudyEnded(reason="cancelled", done=3, total=8)
    statuses = Counter(study_report(directory).progress.statuses.values())
    assert statuses == {"refused": 3, "cancelled": 1, "waiting": 4}


def without_card(study: Study, **fixed: object) -> Study:
    """The study for the device of this machine."""
    kept = {key: value for key, value in study.fixed.items() if key != "card"}
    return msgspec.structs.replace(study, fixed=kept | fixed)


def test_without_a_card_one_rank_is_measured_and_several_need_a_device(home: Path) -> None:
    study = load_study(home / "worlds.toml")
    here = expand(with_overrides(without_card(study, device="cpu"), {"world": "dp=1;dp=2"}))
    assert [cell.is_predicted for cell in here] == [False, False, True, True, False, False]
    forecast = Forecaster().forecast(here[2])
    assert (forecast.peak_bytes, forecast.seconds, forecast.is_run) == (None, None, True)
    assert forecast.room is not None
    elsewhere = expand(without_card(study, device="cuda:9"))
    assert all("card = '': a GPU such as h100" in cell.refused for cell in elsewhere[:2])


def test_worlds_are_chosen_by_their_text_and_plotted_by_their_ranks() -> None:
    study = load_study("layouts")
    (axis,) = (axis for axis in study.axes if axis.name == "world")
    for label in axis.labels:
        cells = expand(study, only={"world": label.split(",")})
        assert {cell.point["world"] for cell in cells} == {label}
        assert all(cell.world and cell.world.size == 8 for cell in cells)
    assert numeric_axis(study) == Across("batch", "batch", {"2": 2.0, "4": 4.0, "8": 8.0})
    scaled = with_overrides(study, {"batch": "4", "world": "dp=8;dp=4;dp=8,tp=2"})
    across = numeric_axis(scaled)
    assert across == Across("world", "ranks", {"dp=8": 8.0, "dp=4": 4.0, "dp=8,tp=2": 16.0})
    assert numeric_axis(with_overrides(scaled, {"world": "dp=8;tp=8"})) is None
