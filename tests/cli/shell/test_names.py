"""How a run is named, alike for every command that takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main

READ = (
    ["show", "RUN"],
    ["compare", "RUN", "RUN"],
    ["export", "RUN", "json", "-o", "OUT", "--force"],
    ["baseline", "save", "main", "RUN", "--force"],
)
FOLLOWED = (["attach", "RUN"], ["stop", "RUN"], ["serve", "RUN"], ["ab", "RUN"])


@pytest.mark.parametrize("words", READ, ids=lambda words: words[0])
def test_a_run_is_named_by_its_age_or_by_how_its_id_begins(
    gpu_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    for name in ("last", "last~0", gpu_run.id[:15]):
        places = {"RUN": name, "OUT": str(tmp_path / "record.json")}
        assert main([*(places.get(word, word) for word in words), "--json"]) == 0
        assert gpu_run.id in capsys.readouterr().out


@pytest.mark.parametrize("words", [*READ, *FOLLOWED], ids=lambda words: words[0])
def test_an_age_that_no_run_has_is_named(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["last~1" if word == "RUN" else word for word in words]) == 2
    assert "last~1" in capsys.readouterr().err
