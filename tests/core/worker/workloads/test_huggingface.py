"""Models of Hugging Face configurations: a row of docs/models.md, and what is refused."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.predict.dry_run_client import canonical_spec
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.passes.memory_pass import measure
from sysbench.core.worker.ranges import router_loads, watched_routers
from sysbench.core.worker.workloads.make_workload import StepError, Workload, make_workload
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


LLAMA = {
    **{"model_type": "llama", "vocab_size": 100, "num_attention_heads": 4},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_are_computed_again_as_they_were_the_first_time(
    tmp_path: Path, precision: str
) -> None:
    values = LLAMA | {"num_hidden_layers": 2}
    spec = configured(tmp_path, values, precision=precision, context=64).changed(device="cuda:0")
    kept, again = (
        exact_prediction(canonical_spec(spec.changed(checkpoint=blocks))) for blocks in (0, 1)
    )
    assert again.saved_activation_bytes < kept.saved_activation_bytes
    assert again.peak_bytes < kept.peak_bytes


def test_rotary_tables_stay_in_float32(tmp_path: Path) -> None:
    model = make_workload(configured(tmp_path, LLAMA, precision="bf16-pure")).model
    assert {str(one.dtype) for one in model.parameters()} == {"torch.bfloat16"}
    assert {str(one.dtype) for one in model.buffers()} == {"torch.float32"}


def test_layers_that_are_computed_again_keep_the_state_of_the_generator(tmp_path: Path) -> None:
    spec = configured(tmp_path, LLAMA, context=64, checkpoint=1)
    events: list[AnyEvent] = []
    measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append)
    reported = events[-1]
    assert isinstance(reported, ResultReported)
    memory = msgspec.convert(reported.data, Memory)
    assert memory.peak_allocated_bytes == exact_prediction(canonical_spec(spec)).peak_bytes


EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "num_key_value_heads": 2}


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_rows_of_experts_are_those_that_the_model_s_own_logits_choose(
    tmp_path: Path, checkpoint: int
) -> None:
    values = LLAMA | EXPERTS | {"model_type": "mixtral"}
    workload = make_workload(configured(tmp_path, values, checkpoint=checkpoint))
    assert isinstance(workload, Workload)
    with torch.no_grad():
        output = workload.model(**workload.batch | {"output_router_logits": True})
    chosen = [logits.topk(2).indices.flatten() for logits in output.router_logits]
    with watched_routers(workload.model) as choices:
        workload.step(lambda phase: None)
    loads = router_loads(choices)
    assert [load.rows_by_expert for load in loads] == [
        torch.bincount(each, minlength=6).tolist() for each in chosen
    ]
    assert [(load.module, load.top_k) for load in loads] == [
        (f"model.layers.{layer}.mlp.gate", 2) for layer in range(3)
    ]
    assert {sum(load.rows_by_expert) for load in loads} == {2 * 16 * 2}  # tokens × experts of each


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


VIDEO = {
    **{"model_type": "videomae", "image_size": 32, "patch_size": 16, "num_frames": 4},
    **{"tubelet_size": 2, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"intermediate_size": 64, "num_channels": 2},
}
SPEECH = {
    "model_type": "parakeet_ctc",
    "architectures": ["ParakeetForCTC"],
    "vocab_size": 40,
    "encoder_config": {
        **{"model_type": "parakeet_encoder", "hidden_size": 32, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64},
        **{"num_mel_bins": 48, "subsampling_conv_channels": 8},
    },
}
WHISPER = {
    **{"model_type": "whisper", "vocab_size": 50, "d_model": 16, "encoder_layers": 1},
    **{"decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    **{"num_mel_bins": 24, "max_source_positions": 20, "max_target_positions": 32},
    **{"architectures": ["WhisperForConditionalGeneration"], "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}


@pytest.mark.parametrize(
    ("values", "context", "shape"),
    [(VIDEO, 0, (2, 4, 2, 32, 32)), (SPEECH, 0, (2, 64, 48)), (WHISPER, 16, (2, 24, 40))],
)
def test_inputs_have_the_shape_that_the_model_accepts(
    tmp_path: Path, values: dict[str, Any], context: int, shape: tuple[int, ...]
) -> None:
    workload = make_workload(configured(tmp_path, values, context=context))
    assert tuple(workload.inputs[0].shape) == shape
    workload.step(lambda phase: None)


def test_an_error_over_made_inputs_says_that_they_were_made(tmp_path: Path) -> None:
    workload = make_workload(configured(tmp_path, VIDEO, context=0))
    assert isinstance(workload, Workload)
    workload.batch["pixel_values"] = workload.batch["pixel_values"][:, :, 0]
    with pytest.raises(StepError) as caught:
        workload.step(lambda phase: None)
    assert "inputs that were made from its configuration, float32 (2, 4, 32, 32)" in str(
        caught.value.__cause__
    )


def test_an_infinite_number_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    values = {
        **{"model_type": "mamba2", "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1},
        **{"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8},
        **{"architectures": ["Mamba2ForCausalLM"]},
    }
    peaks = [
        exact_prediction(
            canonical_spec(configured(tmp_path, values | {"time_step_limit": [0.0, limit]}))
        ).peak_bytes
        for limit in ({"__float__": "Infinity"}, float("inf"))
    ]
    assert peaks[0] == peaks[1] > 0
