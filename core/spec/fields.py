"""Table of a spec's keys, one row each: allowed values, conversion from text, meaning.

The form, ``--help``, the documentation and the checks all read this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sysbench.core.errors import SpecError
from sysbench.core.formatting import did_you_mean, parse_bytes, parse_ratio
from sysbench.core.spec.choices import ATTENTIONS, PRECISIONS
from sysbench.core.spec.own_model import JOB, OWN_MODEL, canonical_arguments, is_own

MAX_COUNT = 2**31 - 1
MAX_COMMAND_CHARS = 2**16

Group = Literal["work", "dimensions", "update", "compile", "stop", "machine", ""]
Decides = Literal["forward", "step", "procedure", "conditions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of a spec.

    Attributes:
        convert: Converts a text or a TOML value to the field's type; raises ValueError or
            TypeError.
        valid: Whether a converted value is in range.
        group: Section of the form; empty for keys of the studies' experiments, which it omits.
        decides: Scope of its effect. ``forward``: the kernels of a forward pass. ``step``: only the
            part of a step after it. ``procedure``: only the duration of the measurement.
            ``conditions``: none of these.
        part_of: The key that this one refines; both are one factor of a study.
        later: Added after runs had been stored: at its default it is left out of the identity, so
            that those runs keep their identity.
        is_typed: Whether users set it; else it follows from other keys, and help texts omit it.
        zero: Meaning of 0 in a word or two; empty if it is an ordinary number.
        is_used: Whether the value has a meaning, given the values of the other keys.
    """

    name: str
    help: str
    allowed: str
    choices: tuple[str, ...] = ()
    convert: Callable[[Any], Any]
    valid: Callable[[Any], bool]
    group: Group = ""
    decides: Decides = "forward"
    part_of: str = ""
    later: bool = False
    is_typed: bool = True
    zero: str = ""
    is_used: Callable[[Mapping[str, Any]], bool] = lambda values: True

    def parse(self, value: object) -> Any:
        """Convert to the field's canonical form, or raise SpecError."""
        try:
            converted = self.convert(value)
            is_valid = self.valid(converted)
        except (ValueError, TypeError, OverflowError):
            is_valid = False
        if not is_valid:
            raise SpecError(self.name, value, self._message(value))
        return converted

    def _message(self, value: object) -> str:
        typed = value if isinstance(value, str) else ""
        hint = did_you_mean(typed, self.choices).strip()
        return f"{self.allowed}; {hint}" if hint else self.allowed


def as_text(value: Any) -> str:
    """Strip a text; raise TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def as_whole_number(value: Any) -> int:
    """Convert an integer or a text; raise TypeError for a fraction or a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def as_number(value: Any) -> float:
    """Convert a number or a text; raise TypeError for a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value) + 0.0  # -0.0 becomes 0.0: equal specs need equal text


def count(name: str, help: str, low: int = 1, high: int = MAX_COUNT, zero: str = "") -> Field:
    """Define an integer field with a range; ``zero`` is the meaning of 0."""
    allowed = f"an integer from {low} to {high}" + (f" (0: {zero})" if zero else "")
    return Field(
        name=name,
        help=help,
        allowed=allowed,
        convert=as_whole_number,
        valid=lambda value: low <= value <= high,
        zero=zero,
    )


def choice(name: str, help: str, *choices: str) -> Field:
    """Define a field with a closed list of texts."""

    def convert(value: Any) -> str:
        # TOML and users write on/off as booleans; no field here accepts both.
        if isinstance(value, bool):
            return "on" if value else "off"
        return as_text(value)

    return Field(
        name=name,
        help=help,
        allowed="one of " + ", ".join(choices),
        choices=choices,
        convert=convert,
        valid=lambda value: value in choices,
    )


def switch(name: str, help: str) -> Field:
    """Define a boolean field with several spellings."""
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    return Field(
        name=name,
        help=help,
        allowed="true or false",
        choices=("false", "true"),
        convert=lambda value: (
            value if isinstance(value, bool) else words.get(as_text(value).lower())
        ),
        valid=lambda value: value is not None,
    )


def decimal(
    name: str,
    help: str,
    allowed: str,
    low: float,
    high: float,
    convert: Callable[[Any], float] = as_number,
    zero: str = "",
) -> Field:
    """Define a number field with a range that ``allowed`` describes."""
    return Field(
        name=name,
        help=help,
        allowed=allowed,
        convert=convert,
        valid=lambda value: low <= value <= high,  # false for nan
        zero=zero,
    )


def as_ratio(value: Any) -> float:
    """Convert a share, also from ``0.5%``."""
    return parse_ratio(value) if isinstance(value, str) else as_number(value)


def as_bytes(value: Any) -> int:
    """Convert a count of bytes, also from ``24GiB``."""
    return parse_bytes(value) if isinstance(value, str) else as_whole_number(value)


def field_named(name: str, value: object = "…") -> Field:
    """Return the field of that name, or raise SpecError with the nearest name and ``value``."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    hint = did_you_mean(name, _BY_NAME).strip() or f"known: {', '.join(typed_keys())}"
    raise SpecError(name, value, f"no such key; {hint}")


def typed_keys() -> tuple[str, ...]:
    return tuple(field.name for field in FIELDS if field.is_typed)


def group_keys(group: Group) -> tuple[str, ...]:
    return tuple(field.name for field in FIELDS if field.group == group)


def keys_deciding(*kinds: Decides) -> tuple[str, ...]:
    """Return the keys with one of these scopes, in the order of the table."""
    return tuple(field.name for field in FIELDS if field.decides in kinds)


def unused_keys(values: Mapping[str, Any]) -> set[str]:
    """Return the keys without a meaning given the others: an optimizer without training steps."""
    return {field.name for field in FIELDS if not field.is_used(values)}


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the keys with different values, used or not; those of ``a`` first, in its order."""
    return [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def _warmup(value: Any) -> int | str:
    return "auto" if isinstance(value, str) and value.strip() == "auto" else as_whole_number(value)


def _device(value: Any) -> str:
    text = as_text(value)
    return "cuda:0" if text == "cuda" else text


def _trains(values: Mapping[str, Any]) -> bool:
    return values.get("step") == "train"


def _compiles(values: Mapping[str, Any]) -> bool:
    return values.get("compile") != "off"


def _size(name: str, help: str, high: int) -> Field:
    allowed = f"an integer from 1 to {high} (0 if your model has no such argument)"
    return replace(count(name, help, 0, high), allowed=allowed)


def _with(group: Group, *fields: Field, **metadata: Any) -> tuple[Field, ...]:
    return tuple(replace(field, group=group, **metadata) for field in fields)


FIELDS: tuple[Field, ...] = (
    *_with(
        "work",
        Field(
            name="model",
            help="preset, or your own model",
            allowed="the name of a preset, such as tiny, cs336-2025/large or gpt2, or "
            "FILE.py:FACTORY, PACKAGE.MODULE:FACTORY, hf:PATH with model.NAME=VALUE",
            convert=as_text,
            valid=lambda value: len(value) <= 4096 if is_own(value) else len(value) <= 100,
        ),
    ),
    *_with(
        "dimensions",
        count("vocab", "rows of the embedding and of the head", low=0, zero="from the preset"),
        count("d_model", "width of the residual stream", low=0, zero="from the preset"),
        count("d_ff", "inner width of the feed-forward", low=0, zero="from the preset"),
        count("layers", "number of blocks", low=0, high=10_000, zero="from the preset"),
        count("heads", "attention heads per block", low=0, zero="from the preset"),
        part_of="model",
    ),
    *_with(
        "work",
        _size("batch", "sequences per step", 2**20),
        _size("context", "tokens per sequence", 2**24),
        choice(
            "precision",
            "fp32 is IEEE; tf32 lets matrix products round; bf16 and fp16 are autocast; fp8 is "
            "bf16 with linear layers in float8 by torchao, scaled by row or by tensor; mxfp8 and "
            "nvfp4 are bf16-pure with weights in blocks, for inference",
            *(row.name for row in PRECISIONS),
        ),
        choice(
            "attention",
            "naive materialises the scores; sdpa lets torch choose the kernel; own is your model's",
            *(row.name for row in ATTENTIONS),
        ),
    ),
    *_with(
        "work",
        choice(
            "step",
            "what one step does; forward keeps the graph, inference does not; prefill fills a "
            "cache of keys and values, decode adds a token of each sequence to a full one; "
            "without weights to train, in bare attention, train is forward+backward",
            *("inference", "prefill", "decode", "forward", "forward+backward", "train"),
        ),
        decides="step",
    ),
    *_with(
        "update",
        choice(
            "optimizer",
            "used by step = train; custom is your model's own",
            *("adamw-loop", "adamw-foreach", "adamw-fused", "sgd", "custom"),
        ),
        decimal(
            "clip",
            "gradient norm to clip to; 0 is off",
            "a number from 0 to 1e9",
            0,
            1e9,
            zero="off",
        ),
        decides="step",
        is_used=_trains,
    ),
    *_with(
        "update",
        choice(
            "compile",
            "torch.compile mode",
            *("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        ),
    ),
    *_with(
        "compile",
        choice("compile_backend", "torch.compile backend", "inductor", "aot_eager", "eager"),
        choice("compile_scope", "compile the whole model, or each block", "whole", "block"),
        switch("compile_fullgraph", "refuse graph breaks"),
        choice("compile_dynamic", "dynamic shapes", "auto", "on", "off"),
        choice("compile_cache", "cold starts from empty compiler caches", "warm", "cold"),
        is_used=_compiles,
    ),
    *_with(
        "stop",
        Field(
            name="warmup",
            help="steps before measuring; auto continues until they agree",
            allowed="auto, or an integer from 0 to 10000",
            convert=_warmup,
            valid=lambda value: value == "auto" or 0 <= value <= 10_000,
        ),
        count("steps", "number of measured steps", 0, 1_000_000, zero="until settled"),
        decimal(
            "until",
            "stop when the 95 % interval's half-width is this share of the median",
            "a share from 0.000001 to 1, such as 0.005 or 0.5%",
            1e-6,
            1,
            as_ratio,
        ),
        count("max_steps", "maximum number of steps", high=1_000_000),
        decimal(
            "max_seconds",
            "maximum time",
            "0.1 to 86400 seconds",
            0.1,
            86400,
        ),
        decides="procedure",
    ),
    *_with(
        "stop",
        choice(
            "sync",
            "batched waits once per batch; every-step waits each step and is slower",
            "batched",
            "every-step",
        ),
        decides="conditions",
    ),
    *_with(
        "machine",
        Field(
            name="device",
            help="auto is the first CUDA device, else the CPU",
            allowed="auto, cpu, cuda or cuda:N",
            convert=_device,
            valid=lambda value: bool(re.fullmatch(r"auto|cpu|cuda:(0|[1-9][0-9]{0,2})", value)),
        ),
        count(
            "threads",
            "host threads for operators; default: OMP_NUM_THREADS, else all cores but one",
            0,
            4096,
            zero="automatic",
        ),
    ),
    *_with(
        "machine",
        count("seed", "seed of weights and data", low=0),
        Field(
            name="memory_limit",
            help="limit of allocated memory, to emulate a smaller device",
            allowed="bytes in binary units such as 24GiB, at least 1MiB; 0 is none",
            convert=as_bytes,
            valid=lambda value: value == 0 or 2**20 <= value <= 2**50,
            zero="none",
        ),
        decides="conditions",
    ),
    *_with(
        "",
        choice(
            "workload",
            "workload; all but transformer belong to the studies",
            *("transformer", "attention", "accumulation", "autocast-dtypes", "all-reduce"),
            OWN_MODEL,
            JOB,
        ),
        count("checkpoint", "blocks per recomputed segment", 0, 10_000, zero="keep everything"),
        count("ranks", "processes that work together", 1, 1024),
        choice(
            "parallel",
            "how ranks share gradients or weights",
            *("none", "naive", "flat", "overlap", "bucketed", "ddp", "fsdp2"),
        ),
        later=True,
    ),
    *_with(
        "",
        decimal("bucket_mib", "gradients sent at once", "0.001 to 65536 MiB", 0.001, 65536),
        later=True,
        part_of="parallel",
    ),
    *_with(
        "",
        choice("comm_backend", "auto is nccl on CUDA, gloo on the CPU", "auto", "nccl", "gloo"),
        switch("shard_optimizer", "shard the optimizer's state over the ranks"),
        decimal("payload_mib", "size of the all-reduced buffer", "0 to 65536 MiB", 0, 65536),
        choice(
            "mask",
            "mask of bare attention; auto is none there and causal in a model",
            *("auto", "causal", "none"),
        ),
        later=True,
    ),
    *_with(
        "",
        Field(
            name="model_args",
            help="arguments of your model's factory; model.NAME=VALUE sets one",
            allowed='a JSON object such as {"layers": 4}',
            convert=canonical_arguments,
            valid=lambda value: len(value) <= 4096,
            is_typed=False,
        ),
        Field(
            name="model_file",
            help="file of your model's code, derived from model",
            allowed="a path",
            convert=as_text,
            valid=lambda value: len(value) <= 4096,
            is_typed=False,
        ),
        Field(
            name="model_source",
            help="digest of your model's code and libraries, derived from the file",
            allowed="16 hexadecimal digits",
            convert=as_text,
            valid=lambda value: bool(re.fullmatch(r"(|[0-9a-f]{16})", value)),
            is_typed=False,
        ),
        part_of="model",
        later=True,
        is_used=lambda values: is_own(values.get("model")),
    ),
    *_with(
        "",
        Field(
            name="command",
            help="words of a watched command, as a JSON list",
            allowed="a JSON list of texts",
            convert=as_text,
            valid=lambda value: len(value) <= MAX_COMMAND_CHARS,
            is_typed=False,
        ),
        part_of="model",
        later=True,
        is_used=lambda values: values.get("workload") == JOB,
    ),
    *_with(
        "",
        switch("trust_code", "run code shipped with a configuration; only with hf:PATH"),
        part_of="model",
        later=True,
        is_used=lambda values: is_own(values.get("model")),
    ),
    *_with(
        "update",
        count(
            "accumulation",
            "micro-batches of a step, each of batch sequences, whose gradients add up",
            high=1024,
        ),
        decides="step",
        later=True,
        is_used=lambda values: values.get("step") in ("forward+backward", "train"),
    ),
)

_BY_NAME = {field.name: field for field in FIELDS}

COMPILE_KEYS = ("compile", *group_keys("compile"))
"""Keys of torch.compile, which an eager run does not use."""
