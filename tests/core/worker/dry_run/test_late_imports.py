"""Imports that a played step is spared: later, and only where something calls them."""

from __future__ import annotations

import json
import os
import shutil
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

MINE = """
from transformers import BertConfig, BertForMaskedLM
def make():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(vocab_size=50, num_hidden_layers=1, **sizes))
"""


def test_a_module_is_imported_when_a_function_of_it_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(late_imports, "LATE", ("slow_to_import",))
    has_ranks = torch.distributed.is_available()
    with few_imports(is_of_one_package=False):
        from slow_to_import import twice  # type: ignore[import-not-found]

        assert not torch.distributed.is_available()
    assert torch.distributed.is_available() == has_ranks
    assert "slow_to_import" not in sys.modules
    assert capsys.readouterr().out == ""
    assert [twice(2), twice(3)] == [4, 6]
    assert capsys.readouterr().out == "loaded\n"
    del sys.modules["slow_to_import"]


def test_only_the_folder_of_transformers_models_is_listed_in_part(tmp_path: Path) -> None:
    for parent in ("transformers", "others"):
        for name in ("auto", "llama"):
            (tmp_path / parent / "models" / name).mkdir(parents=True)
    with few_imports(is_of_one_package=True):
        with os.scandir(tmp_path / "transformers" / "models") as entries:
            assert [entry.name for entry in entries] == ["auto"]
        assert len(list(os.scandir(bytes(tmp_path / "others" / "models")))) == 2
        shutil.rmtree(tmp_path / "others")  # lists by the number of an open folder
    assert len(list(os.scandir(tmp_path / "transformers" / "models"))) == 2


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


def test_models_that_were_not_listed_are_when_code_of_the_users_wants_them(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    values = {"model_type": "llama", "num_attention_heads": 2, **sizes}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(values | {"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "mine.py").write_text(MINE)
    code = f"""
import sys
from sysbench.core.estimate.exact import canonical_spec
from sysbench.core.spec.resolve import resolved
from sysbench.core.spec.spec import parse_spec
from sysbench.core.worker.dry_run.child import quick_prediction
for model in ("hf:{config}", "{tmp_path}/mine.py:make", "hf:{config}"):
    settings = {{"model": model, "device": "cpu", "batch": 1, "context": 8}}
    prediction = quick_prediction(canonical_spec(resolved(parse_spec(settings))))
    transformers = sys.modules["transformers"]
    has_texts = transformers.utils.is_tokenizers_available()
    print(prediction.parameters, hasattr(transformers, "BertConfig"), has_texts)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    llama = sum((50 * 16, 4 * 16 * 16, 3 * 16 * 16, 2 * 16, 16, 50 * 16))
    bert = done.stdout.splitlines()[1:2]
    listed = [f"{llama} False False", f"{llama} True True"]
    assert done.stdout.splitlines()[::2] == listed, done.stderr
    assert bert[0].endswith(" True True")
