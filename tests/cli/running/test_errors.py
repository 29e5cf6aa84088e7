"""Bad input is one clear message on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.tui.cli import main
from sysbench.tui.commands.registry import parse_arguments
from sysbench.tui.commands.spec_arguments import asked_spec


def message(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Error message of a command that must fail."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sysbench-tui: ")
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model=tiny", "heads=3"], ["heads = 3", "tiny has heads = 4"]),
        (["layers=2", "d_model=64", "d_ff=64", "vocab=10", "heads=7"], ["heads = 7", "divide"]),
        (["batch=0"], ["batch = 0", "an integer ≥ 1"]),
        (["batch=-4"], ["batch", "-4"]),
        (["batch=four"], ["batch = 'four'", "an integer from 1 to"]),
        (["btach=4"], ["btach", "did you mean 'batch'?"]),
        (["model=tinny"], ["model = 'tinny'", "did you mean 'tiny'?"]),
        (["model=large"], ["ambiguous", "cs336-2025/large", "cs336-2026/large"]),
        (["precision=fp31"], ["precision = 'fp31'", "fp32, tf32"]),
        (["device=cpu", "precision=tf32"], ["precision = 'tf32'", "CUDA"]),
        (["device=tpu"], ["device = 'tpu'", "auto, cpu, cuda"]),
        (["memory_limit=24GB"], ["memory_limit = '24GB'", "24GiB"]),
        (["batch"], ["--set = 'batch'", "KEY=VALUE"]),
        (["=4"], ["--set = '=4'", "KEY=VALUE"]),
        (["batch=\x1b[31m4"], ["batch"]),
    ],
)
def test_bad_setting_names_the_key_the_value_and_what_is_allowed(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], settings: list[str], words: list[str]
) -> None:
    options = [part for setting in settings for part in ("--set", setting)]
    for command in ("run", "estimate"):
        text = message(capsys, command, *options)
        assert all(word in text for word in words)
        assert "\x1b" not in text
    assert list_runs() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--repeat", "0"], "repeat = 0: rounds of the timing pass, 1 to 100"),
        (["--repeat", "101"], "1 to 100"),
        (
            ["--repeat", "2", "--passes", "memory"],
            "repeat = 2: several rounds need",
        ),
    ],
)
def test_rounds_that_cannot_be_measured_are_refused_before_the_run(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert words in message(capsys, "run", "--set", "model=tiny", *options)
    assert list_runs() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"batch = 1\nstep = ,", ["line 2"]),
        (b"batch = -1", ["batch = -1", "from 1 to"]),
        (b"wings = 2", ["wings"]),
        (b"passes = ['flying']", ["passes", "timing, trace, memory"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b"batch = {a = 1}", ["batch"]),
        (b"x = " + b"[" * 5000, ["TOML"]),
        (b"# long\n" * 100_000, ["KiB"]),
    ],
)
def test_bad_spec_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: list[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    text = message(capsys, "estimate", str(path))
    assert all(word in text for word in (str(path), *words))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["estimate", "nowhere.toml"], ["nowhere.toml", "No such file"]),
        (["estimate", "nobody"], ["no profile 'nobody'", "known: tiny"]),
        (["run", "tinny"], ["did you mean 'tiny'"]),
        (["run", "cs336-2025/xxl"], ["did you mean 'cs336-2025/xl'"]),
        (["run", "xl"], ["ambiguous, did you mean cs336-2025/xl", "parameters) or"]),
        (["estimate", "tiny", "cs336-2025/xl"], ["'tiny cs336-2025/xl'", "one model"]),
        (["run", "tiny", "contxt=8"], ["contxt", "context"]),
        (["run", "nano.py"], ["nano.py:make", "function"]),
        (["run", "--passes", "timing,flying"], ["passes", "flying", "timing, trace, memory"]),
        (["run", "--passes", ","], ["passes"]),
        (["show", "nothing"], ["no run 'nothing'", "sysbench-tui list"]),
        (["show", "last"], ["no run 'last'", "runs; `sysbench-tui list`"]),  # nothing to suggest
        (["attach", "nothing"], ["no run 'nothing'"]),
        (["stop", "nothing"], ["no run 'nothing'"]),
        (["export", "nothing", "csv"], ["no run 'nothing'"]),
        (["compare", "one", "other"], ["no run 'one'"]),
    ],
)
def test_what_is_not_there_is_named(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    text = message(capsys, *arguments)
    assert all(word in text for word in words)
    assert list_runs() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["show"],
        ["show", "last", "more"],
        ["export", "last", "pdf"],
        ["show", "last", "--section", "x"],
        ["run", "tiny", "--contxt", "8"],
    ],
)
def test_wrong_arguments_are_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("shoow last", "unknown COMMAND 'shoow'; did you mean 'show'?"),
        ("zzz", "unknown COMMAND 'zzz'; known: run, estimate,"),
        ("show last --section kernel", "show: unknown --section 'kernel'; did you mean 'kernels'?"),
        ("export last jsn", "export: unknown KIND 'jsn'; did you mean 'json'?"),
        ("baseline savee", "baseline: unknown ACTION 'savee'; did you mean 'save'?"),
        ("study --format htm", "study: unknown --format 'htm'; did you mean 'html'?"),
        ("show last --wdie", "show: unknown argument: --wdie; did you mean '--wide'?"),
        ("compare last", "required: B (usage: sysbench-tui compare 1204 1211)"),
    ],
)
def test_an_unknown_word_is_one_line_with_the_closest_known(
    arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments.split())
    text = capsys.readouterr().err
    assert line in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run tiny --passes timng", "did you mean 'timing'? any of timing"),
        ("run tiny contxt=128", "no such key; did you mean 'context'?\n"),
        ("run tiny optimizer=sgdd", "did you mean 'sgd'?"),
        ("estimate tiny --card h10", "did you mean h100?"),
        ("estimate tiny --card rtx4091", "did you mean 'rtx4090'?"),
        ("study precison --dry-run", "no study 'precison'; did you mean 'precision'?"),
        ("study precision --only modle=xl --dry-run", "did you mean 'model'?"),
        ("study precision --only model=lrge --dry-run", "did you mean 'large'?"),
        ("show lastt", "did you mean 'last'?"),
        ("run -- python train.py", "scripts cannot be run: name the function"),
        ("run train.py", "train.py:make, or record a trace"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_closest(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert words in message(capsys, *arguments.split())


def test_export_over_a_file_is_refused(
    gpu_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.md"
    target.write_text("mine")
    assert "--force" in message(capsys, "export", "last", "md", "-o", str(target))
    assert target.read_text() == "mine"
    assert main(["export", "last", "md", "-o", str(target), "--force"]) == 0


def test_home_that_cannot_be_made_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", "/dev/null/home")
    assert os.strerror(20) in message(capsys, "run", code=1)
    monkeypatch.setenv("SYSBENCH_HOME", "/proc/x")
    text = message(capsys, "run", code=1)
    assert "/proc/x: cannot create the data folder" in text and "set SYSBENCH_HOME" in text


@pytest.mark.parametrize(
    "words",
    [
        "list",
        "list --trash",
        "show last",
        "study list",
        "baseline list",
        "stop last",
        "attach last",
    ],
)
@pytest.mark.parametrize("kind", ["file", "device", "link to nowhere"])
def test_a_home_that_is_a_file_does_not_read_as_empty(
    words: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = Path(os.devnull) if kind == "device" else tmp_path / "file"
    if kind == "link to nowhere":
        home.symlink_to(tmp_path / "unmounted")
    else:
        home.touch()
    monkeypatch.setenv("SYSBENCH_HOME", str(home))
    text = message(capsys, *words.split())
    # The end of a long path is left out.
    assert f"SYSBENCH_HOME = '{str(home)[:20]}" in text and ": is not a folder" in text


@pytest.mark.parametrize(
    "words",
    [
        "export last csv -o -",
        "export trace.json md -o -",
        "compare last last -o -",
        "study show x -o -",
        "inspect . --merged -",
    ],
)
def test_a_dash_names_no_file(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert "name a file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["tiny", "context=8", "precision=bf16", "--passes", "timing"],
        ["tiny", "--passes", "timing", "context=8", "precision=bf16"],
        ["--context", "8", "--passes", "timing", "tiny", "--precision", "bf16"],
        ["precision=bf16", "--set", "context=8", "tiny"],
        ["--model", "tiny", "context=9", "precision=fp32", "--context=8", "--precision=bf16"],
        ["model=10B", "context=9", "--set", "model=tiny", "--set=context=8", "precision=bf16"],
    ],
)
def test_a_spec_is_typed_as_words_options_or_both(words: list[str]) -> None:
    """Options beat words, and ``--set`` beats both."""
    spec = asked_spec(parse_arguments(["run", *words]))
    assert spec.settings() == {"context": 8, "precision": "bf16"}
    assert spec.model == "tiny"
