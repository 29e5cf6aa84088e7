"""Bytes of caches by configuration, against published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sysbench.core.predict.cache_forms import configured_form

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "serve.md"


def grouped(layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": 8 * heads,
        "num_key_value_heads": heads,
        "hidden_size": 8 * heads * width,
        "head_dim": width,
        **more,
    }


LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
GEMMA = {"model_type": "gemma3_text", "sliding_window": 1024}
OSS = {"model_type": "gpt_oss", "sliding_window": 128}
PUBLISHED: dict[str, tuple[dict[str, Any], int, int]] = {
    "meta-llama/Llama-3.1-8B": (grouped(32, 8, 128), 131_072, 131_072),
    "meta-llama/Llama-3.1-70B": (grouped(80, 8, 128), 327_680, 327_680),
    "meta-llama/Llama-3.1-405B": (grouped(126, 8, 128), 516_096, 516_096),
    "Qwen/Qwen3-8B": (grouped(36, 8, 128), 147_456, 147_456),
    "Qwen/Qwen3-32B": (grouped(64, 8, 128), 262_144, 262_144),
    "deepseek-ai/DeepSeek-V3": (grouped(61, 128, 56, **LATENT), 70_272, 70_272),
    "google/gemma-3-27b-pt": ({"text_config": grouped(62, 16, 128, **GEMMA)}, 507_904, 81_920),
    "openai/gpt-oss-20b": (grouped(24, 8, 64, **OSS), 49_152, 24_576),
    "openai/gpt-oss-120b": (grouped(36, 8, 64, **OSS), 73_728, 36_864),
}
"""By repository: what decides the cache in its config.json; in bf16 the bytes that a sequence
grows by with its first token, and with its 8,192nd."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_token_takes_the_published_bytes(name: str) -> None:
    config, first, late = PUBLISHED[name]
    form = configured_form(config)
    assert form is not None
    assert form.bytes_per_token(1, 2) == first
    assert form.bytes_per_token(8192, 2) == late
    row = next(line for line in PAGE.read_text("utf-8").splitlines() if f"| {name} |" in line)
    assert f" {first:,} | {late:,} |" in row


# GiB for 1k tokens in FP16, three digits: huggingface.co/blog/llama31 (405B there has 16 heads).
@pytest.mark.parametrize(("layers", "published"), [(32, 0.125), (80, 0.313)])
def test_a_sequence_takes_the_published_memory(layers: int, published: float) -> None:
    form = configured_form(grouped(layers, 8, 128))
    assert form is not None
    assert form.bytes(1024, 1, 2) / 2**30 == pytest.approx(published, abs=6e-4)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "jamba", "mamba_d_state": 16, **grouped(2, 2, 8)},
        {"layer_types": ["linear_attention"] * 2, **grouped(2, 2, 8)},
    ],
)
def test_unknown_kinds_of_layers_have_no_form(config: dict[str, Any]) -> None:
    assert configured_form(config) is None
