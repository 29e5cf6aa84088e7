"""Models of Hugging Face configurations: a row of docs/models.md, and what is refused."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.predict.dry_run_client import canonical_spec
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.workloads.make_workload import make_workload
from tests.drawn import some_of

SCRIPT = Path(__file__).parents[3] / "validation" / "models.py"
ARCHITECTURES = some_of("architectures", ["llama", "mixtral", "mamba", "t5", "vit"], 1)


def configured(folder: Path, values: dict[str, Any], **settings: Any) -> RunSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    small = {"device": "cpu", "threads": 1, "batch": 2, "context": 16}
    return resolve(parse_spec({"model": f"hf:{path}", **small, **settings}))


def test_without_transformers_the_message_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SpecError, match=f"{sys.executable} -m pip install transformers"):
        make_workload(configured(tmp_path, {"model_type": "llama"}))


@pytest.fixture(scope="module")
def measured_rows() -> dict[str, Any]:
    """Rows of the table in docs/models.md by architecture, measured again."""
    rows_of = runpy.run_path(str(SCRIPT))["rows_of"]
    return {row.name: row for row in rows_of(ARCHITECTURES)}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_row_of_the_table_of_architectures_holds(
    name: str, measured_rows: dict[str, Any]
) -> None:
    row = measured_rows[name]
    assert row.error == ""
    assert abs(row.unsummed) < 1e-9
    assert abs(row.ledger_gap) < 1e-3
    assert row.with_module >= 0.99
    assert abs(row.predicted) < 0.01


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_are_computed_again_as_they_were_the_first_time(
    tmp_path: Path, precision: str
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    values = {"model_type": "llama", "vocab_size": 100, "num_attention_heads": 4, **sizes}
    spec = configured(tmp_path, values, precision=precision, context=64).changed(device="cuda:0")
    kept, again = (
        exact_prediction(canonical_spec(spec.changed(checkpoint=blocks))) for blocks in (0, 1)
    )
    assert again.saved_activation_bytes < kept.saved_activation_bytes
    assert again.peak_bytes < kept.peak_bytes


@pytest.mark.parametrize(
    ("values", "settings", "words"),
    [
        ({"model_type": "llama"}, {"model.depth": 2}, "a key of llama's configuration"),
        ({"model_type": "mine"}, {}, "does not know model_type mine"),
        ({"model_type": "mine", "auto_map": {}}, {}, "trust_code = False: true, to run the code"),
        ({"a": 1}, {}, "has no model_type"),
    ],
)
def test_what_a_configuration_cannot_be_is_said(
    values: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((SpecError, ModelError), match=words):
        make_workload(configured(tmp_path, values, **settings))
