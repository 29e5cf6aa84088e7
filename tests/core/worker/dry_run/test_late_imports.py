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


def test_a_step_is_played_without_symbols_for_sizes() -> None:
    code = """
import sys
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.child import exact_prediction, quick_prediction
spec = RunSpec(model="tiny", layers=2, device="cpu")
quick = quick_prediction(spec)
print("sympy" in sys.modules, "torch._dynamo" in sys.modules, quick == exact_prediction(spec))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "False False True\n", done.stderr


def test_what_else_is_asked_of_symbols_is_the_real_one() -> None:
    code = """
import sys
import torch
from sysbench.core.worker.dry_run.late_imports import plain_torch
with plain_torch():
    from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_eq
    assert guard_or_false(False) is False and sym_eq((1, 2), [1, 2]) and not sym_eq((1,), (1, 2))
    assert "sympy.core" not in sys.modules
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    assert DimDynamic.DYNAMIC.name == "DYNAMIC"
    import sympy
    assert sympy.Integer(2) + 1 == 3
from torch.fx.experimental import symbolic_shapes
assert symbolic_shapes.DimDynamic is DimDynamic
print("real")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "real\n", done.stderr
