"""Steps with a cache of drawn models: tokens, bytes, ledger and prediction of each architecture.

Run as ``python -m tests.validation.serving [SEED]`` where torch and transformers are; it prints a
table and ends with 1 if a check fails. The suite runs some of them.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
from torch import Tensor

from sysbench.core.predict.cache_forms import cache_form
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.passes.memory_pass import measure
from sysbench.core.worker.workloads.make_workload import Workload
from tests.validation.models import ARCHITECTURES, SIZES

HYBRIDS: dict[str, tuple[str, str]] = {
    "jamba": ("hybrid, state space", "JambaForCausalLM"),
    "falcon_h1": ("hybrid, state space", "FalconH1ForCausalLM"),
    "qwen3_next": ("hybrid, linear attention", "Qwen3NextForCausalLM"),
}
CAUSAL = {name: (kind, model) for name, (kind, model, _) in ARCHITECTURES.items()} | HYBRIDS
NAMES = (
    *("gpt2", "opt", "llama", "qwen3", "falcon", "mistral", "gemma2", "gemma3_text", "mixtral"),
    *("qwen3_moe", "deepseek_v3", "mamba", "mamba2", *HYBRIDS),
)


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What one drawn model showed.

    Attributes:
        form_bytes: Of the cache in closed form; null where there is none.
        gap: Bytes by which the ledger's rows miss the peak of a decode step.
        library: Bytes of it that libraries took within products, which nothing predicts.
        error: Predicted over measured peak of tensors, minus one.
        row_bytes: Of the row of the cache at that peak, predicted and measured.
        tokens: How many greedy tokens are those of the model without a cache.
    """

    name: str
    drawn: str
    cache_bytes: int
    form_bytes: int | None
    gap: int
    library: int
    error: float
    row_bytes: tuple[int, int]
    tokens: int
    wanted: int

    @property
    def holds(self) -> bool:
        return (
            self.form_bytes in (None, self.cache_bytes)
            and self.gap == 0
            and abs(self.error) <= 1e-3
            and self.row_bytes[0] == self.row_bytes[1] > 0
            and self.tokens == self.wanted
        )


def drawn(name: str, chance: Random) -> dict[str, Any]:
    """A small configuration of an architecture, with sizes that are drawn."""
    width, keys, groups = chance.choice((8, 16)), chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
    heads, layers = keys * groups, chance.randint(2, 4)
    hidden, window = 2 * width * heads, chance.randint(4, 40)
    state = {"state_size": chance.randint(3, 17), "conv_kernel": chance.randint(2, 5)}
    linear = {"num_heads": 2 * heads, "head_dim": 2 * width, "n_groups": 1, "expand": 2}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    grouped = {"num_key_value_heads": keys, "head_dim": width}
    more: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": hidden, "n_head": heads, "n_layer": layers, "n_positions": 256},
        "opt": {"ffn_dim": 64, "word_embed_proj_dim": hidden},
        "falcon": {"multi_query": True},
        "mistral": {**grouped, "sliding_window": window},
        "gemma2": {**grouped, "sliding_window": window},
        "gemma3_text": {**grouped, "sliding_window": window},
        "mixtral": {**grouped, **experts},
        "qwen3_moe": {**grouped, **experts, "moe_intermediate_size": 32},
        "deepseek_v3": ARCHITECTURES["deepseek_v3"][2]
        | {"kv_lora_rank": 4 * chance.randint(2, 6), "num_key_value_heads": heads},
        "mamba": state,
        "mamba2": {**state, **linear, "chunk_size": 16},
        "jamba": {**grouped, **experts, "mamba_d_state": state["state_size"]}
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_expand": 2},
        "falcon_h1": {**grouped, "mamba_d_ssm": 4 * width * heads, "mamba_n_heads": 2 * heads}
        | {"mamba_d_head": 2 * width, "mamba_d_state": state["state_size"], "mamba_chunk_size": 16},
        "qwen3_next": {**grouped, **experts, "moe_intermediate_size": 32}
        | {"linear_num_key_heads": keys, "linear_num_value_heads": heads, "layer_types": None}
        | {"linear_key_head_dim": width, "linear_value_head_dim": width}
        | {"shared_expert_intermediate_size": 32},
    }
    sizes = SIZES | {
        "vocab_size": chance.randint(50, 300),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": max(layers, 4) if name == "qwen3_next" else layers,
        "num_attention_heads": heads,
    }
    return (
        sizes | more.get(name, grouped) | {"model_type": name, "architectures": [CAUSAL[name][1]]}
    )


def checked(name: str, chance: Random, folder: Path) -> Checked:
    """Draw a model of the architecture; run it with and without a cache, and predict its step."""
    config = drawn(name, chance)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    settings: dict[str, object] = {"model": f"hf:{path}", "device": "cpu", "threads": 1}
    settings |= {"batch": chance.randint(1, 3), "context": chance.randint(8, 48)}
    spec = resolve(parse_spec({**settings, "step": "decode"}))
    events = list[AnyEvent]()
    measure(Job(spec=spec, name="memory", folder=str(folder)), events.append)
    last = events[-1]
    if not isinstance(last, ResultReported):
        raise SystemExit(f"{name}: {last}")
    memory = msgspec.convert(last.data, Memory)
    row = next(row for row in memory.reconciliation if row.name == "kv cache")
    workload = Workload(spec)
    for _ in range(3):
        workload.step(lambda phase: None)
    form = cache_form(spec)
    tokens = list(_greedy(resolve(parse_spec({**settings, "step": "prefill"}))))
    return Checked(
        name=name,
        drawn=f"{config['num_hidden_layers']} layers, hidden {config['hidden_size']}, "
        f"{spec.batch} × {spec.context} tokens",
        cache_bytes=workload.cached_bytes,
        form_bytes=form and form.bytes(spec.context, spec.batch, 4),
        gap=sum(row.bytes for row in memory.ledger) - memory.peak_allocated_bytes,
        library=memory.library_workspace_bytes,
        error=-1.0 if memory.tensor_prediction_error is None else memory.tensor_prediction_error,
        row_bytes=(row.predicted_bytes or 0, row.measured_bytes or 0),
        tokens=sum(tokens),
        wanted=len(tokens),
    )


@torch.inference_mode()
def _greedy(spec: RunSpec) -> Iterator[bool]:
    """Whether each of six tokens with a cache is that of the model without one."""
    workload = Workload(spec)
    model, cache, decode = workload.model, workload.cache, workload.parts.decode
    assert decode is not None and cache is not None
    ids: Tensor = workload.batch["input_ids"]
    new = ids
    for _ in range(6):
        new = decode(model, {"input_ids": new}, cache).logits[:, -1:].argmax(-1)
        yield torch.equal(model(ids, use_cache=False).logits[:, -1:].argmax(-1), new)
        ids = torch.cat((ids, new), dim=1)


def main() -> int:
    """Check all architectures and print the table; 1 if a check fails."""
    seed = sys.argv[1] if sys.argv[1:] else str(secrets.randbelow(10**6))
    print(f"seed {seed}, torch {torch.__version__}\n")
    heads = ("architecture", "kind", "drawn", "cache", "closed form", "gap", "library")
    print(f"| {' | '.join((*heads, 'predicted', 'tokens'))} | |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|---|")
    rows = []
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            row = checked(name, Random(f"{seed} {name}"), Path(folder))
        rows.append(row)
        form = "–" if row.form_bytes is None else f"{row.form_bytes:,}"
        cells = (name, CAUSAL[name][0], row.drawn, f"{row.cache_bytes:,}", form)
        ends = (
            row.gap,
            row.library,
            f"{row.error:+.3%}",
            f"{row.tokens}/{row.wanted}",
            "" if row.holds else "fails",
        )
        print(f"| {' | '.join(map(str, (*cells, *ends)))} |", flush=True)
    held = sum(row.holds for row in rows)
    print(f"\n{held} of {len(rows)} hold")
    return held < len(rows)


if __name__ == "__main__":
    sys.exit(main())
