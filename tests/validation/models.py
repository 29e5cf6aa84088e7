"""Measures tiny models of transformers' architectures, and writes the table of docs/models.md.

Run as ``python -m tests.validation.models`` where torch and transformers are. Each architecture
has a process of its own, on the CPU with one thread: a trace pass, a memory pass, and the step
played on tensors without data. With names of architectures only these are measured, and printed.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->\n"

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
SMALL_EXPERTS = {**GROUPED, **EXPERTS, "moe_intermediate_size": 64}
IMAGE = {"image_size": 32, "patch_size": 8}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
SEQ2SEQ = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_start_token_id": 2,
}
LATENT = {
    **SMALL_EXPERTS,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("dense", "GPT2LMHeadModel", GPT2),
    "gpt_neox": ("dense", "GPTNeoXForCausalLM", {}),
    "opt": ("dense", "OPTForCausalLM", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "bloom": ("dense", "BloomForCausalLM", {"n_layer": 2, "n_head": 4}),
    "falcon": ("dense, one key head", "FalconForCausalLM", {"multi_query": True}),
    "phi": ("dense", "PhiForCausalLM", {}),
    "llama": ("grouped heads", "LlamaForCausalLM", GROUPED),
    "qwen2": ("grouped heads", "Qwen2ForCausalLM", GROUPED),
    "qwen3": ("grouped heads", "Qwen3ForCausalLM", GROUPED),
    "olmo2": ("grouped heads", "Olmo2ForCausalLM", GROUPED),
    "starcoder2": ("grouped heads", "Starcoder2ForCausalLM", GROUPED),
    "cohere": ("grouped heads", "CohereForCausalLM", GROUPED),
    "granite": ("grouped heads", "GraniteForCausalLM", GROUPED),
    "mistral": ("sliding window", "MistralForCausalLM", {**GROUPED, "sliding_window": 16}),
    "gemma2": ("sliding window", "Gemma2ForCausalLM", {**GROUPED, "sliding_window": 16}),
    "gemma3_text": ("sliding window", "Gemma3ForCausalLM", {**GROUPED, "sliding_window": 16}),
    "mixtral": ("experts", "MixtralForCausalLM", {**GROUPED, **EXPERTS}),
    "qwen3_moe": ("experts", "Qwen3MoeForCausalLM", SMALL_EXPERTS),
    "olmoe": ("experts", "OlmoeForCausalLM", {**GROUPED, **EXPERTS}),
    "deepseek_v3": ("latent attention, experts", "DeepseekV3ForCausalLM", LATENT),
    "mamba": ("state space", "MambaForCausalLM", {"state_size": 8}),
    "mamba2": (
        "state space",
        "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16},
    ),
    "bert": ("encoder", "BertForMaskedLM", {}),
    "roberta": ("encoder", "RobertaForMaskedLM", {}),
    "distilbert": ("encoder", "DistilBertForMaskedLM", {"dim": 64, "n_layers": 2, "n_heads": 4}),
    "albert": ("encoder", "AlbertForMaskedLM", {"embedding_size": 32}),
    "modernbert": ("encoder", "ModernBertForMaskedLM", {"local_attention": 16}),
    "t5": (
        "encoder and decoder",
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    ),
    "bart": ("encoder and decoder", "BartForConditionalGeneration", SEQ2SEQ),
    "whisper": (
        "audio, encoder and decoder",
        "WhisperForConditionalGeneration",
        {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64},
    ),
    "vit": ("vision", "ViTForImageClassification", IMAGE),
    "deit": ("vision", "DeiTForImageClassification", IMAGE),
    "dinov2": ("vision", "Dinov2ForImageClassification", IMAGE),
    "swin": (
        "vision",
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [1, 1]}
        | {"num_heads": [2, 4], "num_attention_heads": [2, 4]},
    ),
    "convnext": (
        "vision, convolutions",
        "ConvNextForImageClassification",
        {"image_size": 32, "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    ),
    "resnet": (
        "vision, convolutions",
        "ResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "image_size": 32},
    ),
    "llava": (
        "multimodal, text alone",
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **SIZES, **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **SIZES, **IMAGE},
            "image_token_index": 999,
        },
    ),
}
"""By ``model_type``: what it stands for, its class, and its sizes beside `SIZES`."""
WITHOUT_CONTEXT = ("vision",)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one architecture showed; ``error`` says why there is nothing, or no prediction.

    Attributes:
        unsummed: Share of the step that rows, idle and unattributed time do not add up to.
        with_module: Share of the model's time that has a module.
        ledger_gap: Share of the peak that the ledger's rows do not add up to.
        library: Share of the peak that libraries took within products, which nothing predicts.
        predicted: The predicted peak of tensors over the measured one, minus one.
    """

    name: str
    parameters: int = 0
    unsummed: float | None = None
    with_module: float | None = None
    ledger_gap: float | None = None
    library: float | None = None
    predicted: float | None = None
    error: str = ""


def measured(name: str, folder: Path) -> Row:
    """Run the passes of one architecture in this process."""
    from sysbench.core.record.events import AnyEvent, DeviceDescribed, ResultReported
    from sysbench.core.record.record import Kernels, Memory
    from sysbench.core.runs.worker_process import Job
    from sysbench.core.spec.profiles import resolve
    from sysbench.core.spec.spec import parse_spec
    from sysbench.core.worker.boot import prepare_torch
    from sysbench.core.worker.passes import memory_pass as memory
    from sysbench.core.worker.passes import trace_pass as trace

    kind, architecture, sizes = ARCHITECTURES[name]
    path = folder / "config.json"
    values = {**SIZES, **sizes, "model_type": name, "architectures": [architecture]}
    path.write_text(json.dumps(values))
    settings: dict[str, object] = {"model": f"hf:{path}", "device": "cpu", "threads": 1, "batch": 2}
    settings["context"] = 0 if kind.startswith(WITHOUT_CONTEXT) else 64
    spec = resolve(parse_spec(settings))
    prepare_torch(spec)
    events: list[AnyEvent] = []
    for one in (trace, memory):
        one.measure(Job(spec=spec, name="trace", folder=str(folder)), events.append)
    blocks = {event.block: event.data for event in events if isinstance(event, ResultReported)}
    reported = [event.facts for event in events if isinstance(event, DeviceDescribed)]
    facts = next(facts["model"] for facts in reported if "model" in facts)
    kernels = msgspec.convert(blocks["kernels"], Kernels)
    ledger = msgspec.convert(blocks["memory"], Memory)
    rows = sum(row.exclusive_ns for row in kernels.rows) + sum(row.ns for row in kernels.idle)
    peak = ledger.peak_allocated_bytes
    return Row(
        name=name,
        parameters=facts["parameters"],
        unsummed=(rows + kernels.unattributed_ns) / (kernels.step_ms * 1e6) - 1,
        with_module=kernels.coverage.with_module,
        ledger_gap=sum(row.bytes for row in ledger.ledger) / peak - 1,
        library=ledger.library_workspace_bytes / peak,
        predicted=ledger.tensor_prediction_error,
        error=ledger.missing.get("predicted_peak_bytes", ""),
    )


def rows_of(names: Iterable[str]) -> Iterator[Row]:
    """Measure each architecture in a fresh copy of one process, which imports torch only once."""
    with subprocess.Popen(
        [sys.executable, "-P", __file__, "--each", *names], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield msgspec.json.decode(line, type=Row)


def print_rows(names: Iterable[str]) -> None:
    """Print the row of each architecture as a line of JSON; a copy of this process measures it."""
    # What every copy needs, imported once.
    import torch._dynamo  # noqa: F401
    import transformers.modeling_utils  # noqa: F401

    from sysbench.core.worker.passes import memory_pass, trace_pass  # noqa: F401

    gc.freeze()  # as workers do: the passes look at all other objects
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "row.json")
            if not (copy := os.fork()):
                try:
                    row = measured(name, Path(folder))
                except Exception as error:
                    row = Row(name=name, error=f"{type(error).__name__}: {error}")
                path.write_bytes(msgspec.json.encode(row))
                os._exit(0)
            os.waitpid(copy, 0)
            died = Row(name=name, error="its process died")
            row = msgspec.json.decode(path.read_bytes(), type=Row) if path.exists() else died
            print(msgspec.json.encode(row).decode(), flush=True)


def share(value: float | None, digits: int = 2) -> str:
    """``99.95 %``; a dash for none."""
    # One zero, not two.
    return "–" if value is None else f"{round(100 * value, digits) + 0.0:.{digits}f} %"


def table(rows: list[Row]) -> str:
    """The section of the page: what was run, the rows, and what they say together."""
    import torch
    import transformers

    errors = sorted(abs(row.predicted) for row in rows if row.predicted is not None)
    about = (
        f"Tiny configurations with torch {torch.__version__} and transformers "
        f"{transformers.__version__}, on the CPU with one thread: training in fp32, batch 2, "
        "context 64, dropout as the configuration has it. `unsummed` is what rows and idle time "
        "lack of the step, `gap` what the ledger lacks of the peak, `library` the part of the peak "
        "that libraries took within products, which nothing predicts, and `predicted` the played "
        "peak of tensors against the measured one."
    )
    lines = [
        *textwrap.wrap(about, 115),
        "",
        "| architecture | kind | parameters | unsummed | in a module | gap | library | predicted |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [share(row.unsummed), share(row.with_module), share(row.ledger_gap, 3)]
        cells += [share(row.library), share(row.predicted, 3)]
        kind = ARCHITECTURES[row.name][0]
        lines.append(f"| {row.name} | {kind} | {row.parameters:,} | {' | '.join(cells)} |")
    if errors:
        lines += [
            "",
            f"{len(rows)} architectures, {len(errors)} of them predicted: the median error is "
            f"{share(errors[len(errors) // 2], 3)}, the largest {share(errors[-1], 3)}.",
        ]
    failed = [row for row in rows if row.error]
    lines += ["", "What does not work, and why:", ""] if failed else []
    lines += [f"- {row.name}: {row.error}" for row in failed]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure one, some, or all; of all the page is written."""
    names = sys.argv[1:]
    if names[:1] == ["--each"]:
        print_rows(names[1:])
        return
    rows: list[Row] = []
    for row in rows_of(names or ARCHITECTURES):
        rows.append(row)
        print(rows[-1], file=sys.stderr)
    if names:
        print(table(rows), end="")
        return
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(head + BEGIN + table(rows) + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
