"""`study`: forecast, refusals, list."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from sysbench.core.studies.study_runner import StudyEvent
from sysbench.tui.cli import main
from sysbench.tui.commands import study_actions
from tests.envelope import content


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def test_a_dry_run_shows_the_cells_and_runs_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--variant", "small", "--only", "step=train", "--dry-run", "--json"]
    assert main(["study", "e2e", *arguments]) == 0
    (cell,) = content(capsys.readouterr().out)
    assert cell["cell"] == "model=tiny · step=train"
    assert cell["fits"] is True
    assert not (home / "runs").exists()


def test_cells_that_do_not_fit_are_listed_before_they_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    replaced = ["--set", "context=128,4096", "--set", "model=tiny", "--set", "memory_limit=64MiB"]
    assert main(["study", "memory", *replaced, "--only", "step=train", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 are predicted not to fit" in text


def test_a_forecast_has_all_rounds_and_the_number_for_a_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["study", "precision", "--variant", "small", "--dry-run"]
    assert main(small) == 0
    once = " ".join(capsys.readouterr().out.split())
    assert "time unknown" in once
    assert "use at least --repeat 6" in once
    assert main([*small, "--repeat", "6"]) == 0
    text = capsys.readouterr().out
    assert "6 rounds of 4 cells: time unknown" in text
    assert "--repeat" not in text
    assert text.count("precision=bf16 · step=forward ") == 1


def test_a_study_whose_every_cell_is_refused_fails(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = '[[tables]]\nname = "t"\ncolumns = [{ name = "N", value = "parameters" }]\n'
    study = tmp_path / "odd.toml"
    study.write_text(f'title = "odd"\n[fixed]\nd_model = 63\n[axes]\nbatch = [1, 2]\n{table}')
    assert main(["study", str(study)]) == 1
    assert "refused" in capsys.readouterr().out
    assert not (home / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "precision"),
        (["e2e", "--variant", "tiny"], "small"),
        (["e2e", "--only", "step=fly", "--dry-run"], "train"),
        (["e2e", "--only", "speed=1", "--dry-run"], "model, step"),
        (["e2e", "--only", "train", "--dry-run"], "AXIS=VALUE"),
        (["e2e", "--set", "batch=many"], "batch"),
        (["e2e", "--set", "batch=2,4"], "batch"),
        (["e2e", "--repeat", "0"], "repeat"),
        (["e2e", "warmup"], "one study at a time"),
        (["show"], "started"),
        (["show", "e2e"], "was not started here"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_the_list_has_the_shipped_studies_and_those_begun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["study", "list", "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out)
    assert {"e2e", "precision", "attention", "ddp"} <= {
        study["name"] for study in document["studies"]
    }
    assert document["begun"] == []


def test_a_file_with_a_mistake_is_left_out_of_the_list(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sysbench_home / "studies"
    folder.mkdir(parents=True)
    (folder / "wrong.toml").write_text('title = "x"\n')
    assert main(["study", "list"]) == 0
    output = capsys.readouterr()
    assert "precision" in output.out
    assert "not listed: wrong: " in output.err
    assert "tables" in output.err


class Terminal(io.TextIOWrapper):
    def __init__(self, typed: str = "") -> None:
        super().__init__(io.BytesIO(typed.encode()), write_through=True)

    def isatty(self) -> bool:
        return True

    def written(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@pytest.mark.parametrize(("answer", "is_started"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_a_long_study_asks_in_a_terminal(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_started: bool
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(study_actions, "total_seconds", lambda _: (14_294.0, False))
    begun: list[object] = []

    def begin(*arguments: object, **_: object) -> list[StudyEvent]:
        begun.append(arguments)
        return []

    monkeypatch.setattr(study_actions, "run_study", begin)
    words = ("study", "precision", "--only", "model=small")
    code = main(words)
    assert "cells, about 3:58:14. Start? [y/N]" in screen.written()
    assert (code != 130, bool(begun)) == (is_started, is_started)
    asked = screen.written().count("Start?")
    main((*words, "--yes"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    main(words)
    assert screen.written().count("Start?") == asked
    assert len(begun) == 2 + is_started
