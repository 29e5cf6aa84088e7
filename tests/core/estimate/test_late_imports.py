"""Imports that a played step is spared: later, and only where something calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sysbench.core.worker.dry_run import late_imports
from sysbench.core.worker.dry_run.late_imports import few_imports

SLOW = """
print("loaded")
def twice(number):
    return 2 * number
"""


def test_a_module_is_imported_when_a_function_of_it_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(late_imports, "LATE", ("slow_to_import",))
    has_ranks = torch.distributed.is_available()
    with few_imports():
        from slow_to_import import twice  # type: ignore[import-not-found]

        assert not torch.distributed.is_available()
    assert torch.distributed.is_available() == has_ranks
    assert "slow_to_import" not in sys.modules
    assert capsys.readouterr().out == ""
    assert [twice(2), twice(3)] == [4, 6]
    assert capsys.readouterr().out == "loaded\n"
    del sys.modules["slow_to_import"]


def test_the_process_of_exact_mode_imports_torch_where_it_times_it() -> None:
    code = "import sys, sysbench.core.worker.dry_run.child; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"
