"""Bytes of a cache of keys and values in closed form, by configuration and layout. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sysbench.core.predict.closed_form import CACHE, Prediction
from sysbench.core.predict.fit_grid import (
    AvailableMemory,
    Card,
    Fit,
    Predict,
    closed_form_fits,
    largest,
    with_value,
)
from sysbench.core.predict.sizes import CONTEXT_BYTES
from sysbench.core.spec.choices import DtypeName
from sysbench.core.spec.fields import field_named
from sysbench.core.spec.own_model import decoded_arguments, source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import read_json


class LayerForm(NamedTuple):
    """Elements that a layer keeps of one sequence.

    Attributes:
        words: The arithmetic of ``of_token``, or of the others where no token adds to it.
        of_token: For each token, of the last ``window`` ones; 0 is all.
        of_sequence: However long it is: inputs of a convolution.
        of_state: Likewise, in float32 whatever the cache has: state spaces, linear attention.
    """

    words: str
    of_token: int = 0
    window: int = 0
    of_sequence: int = 0
    of_state: int = 0

    def bytes(self, context: int, width: int) -> int:
        tokens = min(context, self.window) if self.window else context
        return width * (self.of_token * tokens + self.of_sequence) + 4 * self.of_state


class CacheForm(NamedTuple):
    """The layers of a model that keep something."""

    layers: tuple[LayerForm, ...]

    def bytes(self, context: int, batch: int, width: int) -> int:
        """Bytes at ``context`` tokens of each sequence, ``width`` bytes an element."""
        return batch * sum(layer.bytes(context, width) for layer in self.layers)

    def bytes_per_token(self, context: int, width: int) -> int:
        """Bytes by which one sequence grows with its ``context``th token."""
        return self.bytes(context, 1, width) - self.bytes(context - 1, 1, width)

    @property
    def words(self) -> str:
        """``32 layers × 2 × 8 heads × 128 a token``, for each kind of layer."""
        parts = []
        for layer, count in Counter(self.layers).items():
            tokens = f" a token, the last {layer.window:,}" if layer.window else " a token"
            parts.append(f"{count} layers × {layer.words}{tokens if layer.of_token else ''}")
        return " + ".join(parts)


STATE_SPACES = ("mamba", "falcon_mamba", "mamba2")
HYBRIDS = ("falcon_h1", "jamba", "qwen3_next")
OTHER_CACHES = ("linear_num_key_heads", "mamba_d_state", "attn_layer_indices", "index_head_dim")
"""Keys of models that also keep what is not covered here: hybrids and indexers."""


def configured_form(config: Mapping[str, Any]) -> CacheForm | None:
    """The form of a configuration in the format of transformers; None for unknown kinds.

    Latent attention keeps the compressed vector and the rotated part of a key, once for all heads.
    """
    config = config.get("text_config") or config

    def size(*names: str) -> int:
        return next((value for name in names if isinstance(value := config.get(name), int)), 0)

    layers, heads = size("num_hidden_layers", "n_layer"), size("num_attention_heads", "n_head")
    hidden, kind = size("hidden_size", "n_embd"), config.get("model_type")
    has_one_key = config.get("multi_query", kind == "falcon")
    is_known = kind in HYBRIDS or not any(name in config for name in OTHER_CACHES)
    if not is_known or (has_one_key and kind != "falcon"):
        return None
    states = _state_form(size, str(kind), hidden)
    if kind in STATE_SPACES:
        return CacheForm((states,) * layers) if states else None
    if not (layers and heads and hidden) or (kind in HYBRIDS and not states):
        return None
    if latent := size("kv_lora_rank"):
        turned = size("qk_rope_head_dim")
        return CacheForm((LayerForm(f"({latent} + {turned})", latent + turned),) * layers)
    keys, width = size("num_key_value_heads") or heads, size("head_dim") or hidden // heads
    if kind == "falcon":
        keys = 1 if has_one_key else size("num_kv_heads") or heads
        keys = heads if config.get("new_decoder_architecture") else keys  # repeated for each head
    full = LayerForm(f"2 × {keys} heads × {width}", 2 * keys * width)
    window = size("sliding_window") if config.get("use_sliding_window", True) else 0
    sliding = full._replace(window=window)
    types = config.get("layer_types") or _layer_types(config, layers, window)
    known: dict[str, tuple[LayerForm, ...]] = {
        "full_attention": (full,),
        "sliding_attention": (sliding,),
    }
    if states:
        known["linear_attention"] = (states,)
    if states and kind == "falcon_h1":  # side by side in each layer
        known["full_attention"] = (full, states)
    if not set(types) <= known.keys():
        return None
    return CacheForm(tuple(form for each in types for form in known[each]))


def _state_form(size: Callable[..., int], kind: str, hidden: int) -> LayerForm | None:
    """What states of a layer keep; None for other kinds, and where a size is missing."""
    # Where a key is absent: the defaults of transformers' configurations.
    kernel, groups = 4, 0
    if kind in STATE_SPACES:
        state, kernel = size("state_size") or 16, size("conv_kernel") or 4
        inner = size("intermediate_size") or (size("expand") or 2) * hidden
        if kind == "mamba2":
            inner, groups = size("num_heads") * size("head_dim"), size("n_groups")
    elif kind == "qwen3_next":
        state, groups = size("linear_key_head_dim"), size("linear_num_key_heads")
        inner = size("linear_num_value_heads") * size("linear_value_head_dim")
        kernel = size("linear_conv_kernel_dim") or 4
    elif kind in HYBRIDS:
        state, kernel = size("mamba_d_state"), size("mamba_d_conv") or 4
        inner = size("mamba_d_ssm") or size("mamba_expand") * hidden
        groups = size("mamba_n_groups") or 1 if kind == "falcon_h1" else 0
    else:
        return None
    if not inner * state:
        return None
    channels = inner + 2 * groups * state
    words = (
        f"({channels:,} × {kernel} of the convolution + {inner:,} × {state} of the state in fp32)"
    )
    return LayerForm(words, of_sequence=channels * kernel, of_state=inner * state)


def _layer_types(config: Mapping[str, Any], layers: int, window: int) -> list[str]:
    """Which layers look at all tokens, where the configuration has no list of them."""
    kind = str(config.get("model_type"))
    if kind in ("jamba", "qwen3_next"):
        every = config.get("attn_layer_period") or config.get("full_attention_interval")
        every = every or (8 if kind == "jamba" else 4)
        place = config.get("attn_layer_offset", 4) if kind == "jamba" else every - 1
        kinds = ("linear_attention", "full_attention")
        return [kinds[index % every == place] for index in range(layers)]
    if not window:
        return ["full_attention"] * layers
    usual = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}.get(kind, 0)
    every = config.get("sliding_window_pattern") or usual
    return [
        "full_attention" if every and not (index + 1) % every else "sliding_attention"
        for index in range(layers)
    ]


def cache_form(spec: RunSpec) -> CacheForm | None:
    """The form of a spec's model; None for factories and unknown kinds of layers."""
    if not spec.is_own:
        size = spec.dimensions
        width = size.head_dimension
        words = f"2 × {size.heads} heads × {width}"
        return CacheForm((LayerForm(words, 2 * size.heads * width),) * size.layers)
    return configured_form(config) if (config := _configuration(spec)) else None


def cache_width(spec: RunSpec) -> int:
    """Bytes of an element: keys and values are results of products."""
    return spec.precision_row.compute_bytes


def block_count(spec: RunSpec) -> int:
    """Blocks of a built-in or configured model; 0 if unknown."""
    if not spec.is_own:
        return spec.layers
    config = _configuration(spec) or {}
    count = (config.get("text_config") or config).get("num_hidden_layers")
    return count if isinstance(count, int) else 0


def embedding_bytes(spec: RunSpec) -> int:
    """Bytes of an embedding table of its own, of which a token reads a row."""
    if not spec.is_own:
        return spec.vocab * spec.d_model * spec.precision_row.weight_bytes
    config = _configuration(spec) or {}
    config = config.get("text_config") or config
    if config.get("tie_word_embeddings", config.get("model_type") in ("gpt2", "gemma3_text")):
        return 0
    elements = int(config.get("vocab_size", 0)) * int(config.get("hidden_size", 0))
    return elements * spec.precision_row.weight_bytes


VLLM_SHARE, VLLM_BLOCK = 0.9, 16
"""Share of a card that vLLM fills, and tokens in a block of its cache: the defaults of its
``gpu_memory_utilization`` and ``block_size``."""
VLLM_SOURCE = (
    "gpu_memory_utilization of CacheConfig in vllm/config/cache.py of v0.16 (0.92 in later ones), "
    "and blocks of 16 tokens, the default on CUDA"
)
CACHE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of an element of a cache by type."""
CACHE_TYPES: dict[DtypeName, tuple[str, ...]] = {
    "float32": ("fp32", "bf16", "fp8"),
    "bfloat16": ("bf16", "fp8"),
    "float16": ("fp16", "fp8"),
}
"""Types of a cache by dtype of products: its own, and narrower ones."""


class LayoutFit(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch or context with a layout of the cache, in closed form.

    Attributes:
        cache: Type of its elements.
        block_size: Tokens in a block; 1 for a contiguous cache.
        memory: What is filled: ``usable``, or an engine's share of the card.
        memory_bytes: Of it, for weights, cache and temporaries.
        sequence_bytes: Of the cache of one sequence at the largest; null if nothing fits.
    """

    cache: str
    block_size: int
    memory: str
    memory_bytes: int
    sequence_bytes: int | None
    largest: int


def layout_fits(
    spec: RunSpec, fit: Fit, room: AvailableMemory, card: Card, predict: Predict, block_size: int
) -> Iterator[LayoutFit]:
    """What fits of ``fit``'s key with other types and layouts of the cache; none without a form.

    Temporaries are those of the predicted steps at the largest value and at half of it, and a
    straight line through both.
    """
    form = cache_form(spec)
    if spec.step != "decode" or form is None or fit.key == "layers":
        return
    high = max(4, fit.largest)
    low = high // 2
    upper, lower = (_without_cache(predict(with_value(spec, fit.key, n))) for n in (high, low))

    def needed(value: int, width: int, block: int) -> int:
        others = upper + (upper - lower) * (value - high) // (high - low)
        return others + cached(value, width, block)

    def cached(value: int, width: int, block: int) -> int:
        context, batch = (value, spec.batch) if fit.key == "context" else (spec.context, value)
        return form.bytes(-(-context // block) * block, batch, width)

    def fits(is_enough: Callable[[int], bool], width: int, block: int, value: int) -> bool:
        return is_allowed(value) and is_enough(needed(value, width, block))

    is_allowed = field_named(fit.key).valid
    usable: Callable[[int], bool] = partial(closed_form_fits, room=room)
    share = int(VLLM_SHARE * (fit.capacity_bytes - card.driver_bytes)) - CONTEXT_BYTES
    limits = [("usable", room.least, block, usable) for block in dict.fromkeys((1, block_size))]
    if room.is_cuda:
        limits.append((f"{VLLM_SHARE} by vLLM", share, VLLM_BLOCK, share.__ge__))
    types = CACHE_TYPES[spec.precision_row.compute]
    for (memory, filled, block, is_enough), name in product(limits, types):
        width = CACHE_BYTES[name]
        found = largest(partial(fits, is_enough, width, block), max(1, fit.largest))
        sequences = spec.batch if fit.key == "context" else found
        yield LayoutFit(
            cache=name,
            block_size=block,
            memory=memory,
            memory_bytes=filled,
            sequence_bytes=cached(found, width, block) // sequences if found else None,
            largest=found,
        )


def _without_cache(prediction: Prediction) -> int:
    cached = sum(row.bytes for row in prediction.ledger if row.name == CACHE)
    return prediction.peak_bytes - cached


def _configuration(spec: RunSpec) -> dict[str, Any] | None:
    if source_of(spec.model).door != "hf":
        return None
    config: dict[str, Any] = msgspec.json.decode(read_json(Path(spec.model_file)))
    return config | decoded_arguments(spec.model_args)
