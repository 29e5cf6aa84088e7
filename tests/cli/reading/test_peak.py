"""The peak that a person gives on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import list_runs
from sysbench.tui.cli import main


@pytest.mark.parametrize("text", ["fast", "0", "989,", "1,2,3"])
def test_a_peak_that_is_none_is_refused_before_anything_is_measured(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["run", "--set", "device=cpu", "--peak", text]) == 2
    message = capsys.readouterr().err
    assert f"--peak = '{text}'" in message
    assert "989.4,3350" in message
    assert list_runs() == []
