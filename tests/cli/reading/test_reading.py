"""Commands that read runs: the same numbers as text and as JSON, in any width."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main
from tests.envelope import content

CLI = shlex.join((sys.executable, "-P", "-m", "sysbench.tui.cli"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return content(printed(capsys, *arguments, "--json"))


def test_report_says_everything_that_decides_the_number_first(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    head = printed(capsys, "show", "last").partition("Trust")[0]
    for word in (
        *("tiny", "787,072 parameters", "batch 4", "context 128", "bf16", "naive attention"),
        *("compile off", "train with adamw-foreach", "cuda:0", "NVIDIA H100", "3 threads"),
        *("finished", gpu_run.id, "Good: Settled"),
    ):
        assert word in head


def test_report_tables_add_up_to_the_step_and_the_peak(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "show", "last").splitlines()
    totals = [line.split()[0:3] for line in lines if line.endswith("  step") and "%" in line]
    assert totals == [["10.000", "100.0", "%"]]
    assert any(line.startswith("  step           10.000  100.0 %") for line in lines)
    assert any(line.startswith("  peak allocated  1.00 GiB  100.0 %") for line in lines)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_report_fits_the_width_without_control_characters(
    gpu_run: RunDirectory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(capsys, "show", "last")
    assert all(char.isprintable() or char == "\n" for char in text)
    # Commands and paths are for copying and are never cut.
    lines = [line for line in text.partition("Artifacts")[0].splitlines()]
    assert max(map(cell_len, lines)) <= width
    assert "void k<float" in text


def test_wide_section_in_a_pipe_keeps_every_row_and_whole_names(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "show", "last", "--section", "kernels", "--wide")
    assert r'void k<float, 4>(int*) | [bold]"x",\n=1+1\x1b[31m' in text
    assert sum("kernel_" in line for line in text.splitlines()) == 40


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ("timing", "tokens/s"),
        ("memory", "blocks.0"),
        ("telemetry", "GPU 0 power, W"),
        ("compile", "compile is off"),
        ("findings", "Good: Settled"),
        ("environment", "NVIDIA H100"),
    ],
)
def test_each_section_prints_its_block(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str], section: str, word: str
) -> None:
    assert word in printed(capsys, "show", "last", "--section", section)
    block = document(capsys, "show", "last", "--section", section)
    assert block == json.loads(gpu_run.record_path.read_bytes())[section]


def test_show_json_is_the_record(gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    shown = content(printed(capsys, "show", "last", "--json"), of_record=True)
    assert shown == json.loads(gpu_run.record_path.read_bytes())


def test_log_section_is_what_the_workers_printed(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    log = gpu_run.log_path("trace")
    log.write_bytes(b"one\n\x1b[2Jtwo \xff\n")
    assert document(capsys, "show", "last", "--section", "log") == {
        "trace": ["one", "\x1b[2Jtwo \ufffd"]
    }
    text = printed(capsys, "show", "last", "--section", "log")
    assert "\n\\x1b[2Jtwo" in text


def test_list_filters_limits_and_is_empty_in_words(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = document(capsys, "list", "tiny", "bf16")
    assert (entry["id"], entry["median_ms"], entry["live"]) == (gpu_run.id, 10.0, False)
    assert document(capsys, "list", "--limit", "0") == []
    assert document(capsys, "list", "fp32") == []
    assert "no runs matching 'fp32'" in printed(capsys, "list", "fp32")
    header, row = printed(capsys, "list").splitlines()
    assert row.split()[0] == gpu_run.id
    assert "precision" in header


def test_list_of_a_new_home_says_how_to_begin(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "list") == []
    assert "sysbench-tui run" in printed(capsys, "list")


def test_estimate_has_the_public_keys(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estimate = document(
        capsys, "estimate", "--set", "model=cs336-2025/xl", "--set", "memory_limit=8GiB"
    )
    assert set(estimate) == {
        *("parameters", "flops", "peak_bytes", "peak_phase", "ledger"),
        *("capacity_bytes", "fits", "method"),
    }
    assert estimate["parameters"] == 1_998_235_200
    assert set(estimate["flops"]) == {"forward", "backward", "step"}
    assert sum(row["bytes"] for row in estimate["ledger"]) == estimate["peak_bytes"]
    assert (estimate["capacity_bytes"], estimate["fits"]) == (8 * 2**30, False)


def test_estimate_text_says_whether_it_fits(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "model=cs336-2025/xl", "--set", "memory_limit=8GiB")
    text = printed(capsys, "estimate", *options)
    assert "1,998,235,200 parameters" in text
    assert "Does NOT fit" in text


def test_spec_file_and_settings_reach_one_spec(
    sysbench_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("vocab = 64\nd_model = 32\nd_ff = 64\nlayers = 1\nheads = 2\nbatch = 2\n")
    from_file = document(capsys, "estimate", str(path))
    assert from_file["parameters"] == 4 * 32**2 + 3 * 32 * 64 + 2 * 32 + 32 + 2 * 64 * 32
    other_model = document(capsys, "estimate", str(path), "--set", "model=tiny")
    assert other_model["parameters"] == 787_072
    doubled = document(capsys, "estimate", str(path), "--set", "batch=4")
    assert doubled["flops"]["forward"] == 2 * from_file["flops"]["forward"]


def test_doctor_explains_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    checks = document(capsys, "doctor")
    assert {"name", "status", "found", "costs", "remedy"} == set(checks[0])
    text = printed(capsys, "doctor")
    assert all(check["name"] in text for check in checks)


def test_reader_that_leaves_early_is_no_error(gpu_run: RunDirectory) -> None:
    command = f"{CLI} show last --section kernels | head -n 1"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(gpu_run: RunDirectory, closed: str) -> None:
    command = f"{CLI} list {closed}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_locale_without_the_characters_still_prints(gpu_run: RunDirectory) -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "sysbench.tui.cli", "show", "last"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert result.returncode == 0
    assert result.stdout.isascii()
