"""The nsys pass in the report and as a section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysbench.core.export.exports import write_export
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main
from tests.envelope import content


def test_the_report_has_kernels_ranges_and_clocks(
    nsys_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "last"]) == 0
    text = capsys.readouterr().out
    for word in ("gemm_kernel", "NVTX ranges with the most GPU time", "[bold]forward", "busy"):
        assert word in text


def test_the_section_is_the_block(
    nsys_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "last", "--section", "nsys"]) == 0
    text = capsys.readouterr().out
    assert "cuda_gpu_kern_sum" in text and "Kernels under nsys" in text
    assert main(["show", "last", "--section", "nsys", "--json"]) == 0
    block = json.loads(nsys_run.record_path.read_bytes())["nsys"]
    assert content(capsys.readouterr().out, of_record=True) == block


def test_its_tables_are_exported(nsys_run: RunDirectory, tmp_path: Path) -> None:
    (page,) = write_export(nsys_run, "md", tmp_path)
    assert "Kernels under nsys" in page.read_text()
