"""How wide and how long the pages are that commands print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.sections import SECTIONS
from sysbench.tui.cli import main
from sysbench.tui.commands.output import print_paged

PIPE_COLUMNS = 120


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def widest(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


def test_tables_in_a_pipe_fit_120_columns_unless_wide(
    nsys_run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    widths = {name: widest(printed(capsys, "show", "last", "--section", name)) for name in SECTIONS}
    widths["list"] = widest(printed(capsys, "list"))
    assert {name: width for name, width in widths.items() if width > PIPE_COLUMNS} == {}
    for words in (["show", "last", "--section", "nsys"], ["list"]):
        assert widest(printed(capsys, *words, "--wide")) > PIPE_COLUMNS


def test_a_report_that_is_cut_on_purpose_cannot_be_wide(
    nsys_run: RunDirectory, nsys_export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["show", "last"], ["show", str(nsys_export)], ["inspect", str(nsys_export)]):
        assert main([*words, "--wide"]) == 2
        assert "--section" in capsys.readouterr().err


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a pager writes what it was given."""
    seen = tmp_path / "seen"
    monkeypatch.setenv("PAGER", f"sh -c 'cat > {seen}; echo $LESS >> {seen}'")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.delenv("LESS", raising=False)
    return seen


def be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard output say so. pytest replaces it between a fixture and its test."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


@pytest.mark.parametrize(
    ("rows", "page", "is_paged"), [(10, True, True), (9, True, False), (10, False, False)]
)
def test_only_what_is_longer_than_the_terminal_is_paged(
    pager: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    page: bool,
    is_paged: bool,
) -> None:
    be_a_terminal(monkeypatch)
    print_paged(([(f"row {number}", "")] for number in range(rows)), page=page)
    text = "".join(f"row {number}\n" for number in range(rows))
    assert capsys.readouterr().out == ("" if is_paged else text)
    assert pager.exists() == is_paged
    if is_paged:
        assert pager.read_text() == f"{text}FRX\n"


@pytest.mark.parametrize("program", ["", "cat", "no-such-pager", "less 'unclosed"])
def test_without_a_pager_the_page_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    be_a_terminal(monkeypatch)
    monkeypatch.setenv("PAGER", program)
    print_paged(([("row", "")] for _ in range(99)), page=True)
    assert capsys.readouterr().out == "row\n" * 99


@pytest.mark.parametrize(
    "words",
    [["show", "last"], ["show", "last", "--section", "kernels"], ["compare", "last", "last"]],
)
def test_show_and_compare_are_paged_on_a_terminal(
    gpu_run: RunDirectory,
    pager: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setenv("LINES", "3")
    assert "\n" in printed(capsys, *words)
    assert not pager.exists()
    be_a_terminal(monkeypatch)
    assert "\n" in printed(capsys, *words, "--no-pager")
    assert not pager.exists()
    assert printed(capsys, *words) == ""
    assert pager.read_text().count("\n") > 3
