"""A record that is gone, or that somebody changed: figures come from the events or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sysbench.core.runs.builder import load_record
from sysbench.core.runs.directory import RunDirectory


@pytest.fixture
def finished(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """A copy of a finished run, to be damaged."""
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


def test_a_record_that_is_gone_is_rebuilt_with_its_environment(finished: RunDirectory) -> None:
    before = finished.record()
    finished.record_path.unlink()
    rebuilt = load_record(finished)
    assert rebuilt.environment == before.environment
    assert rebuilt.timing == before.timing
