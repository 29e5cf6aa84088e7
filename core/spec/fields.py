"""One row per key of a spec: what it may hold, how text becomes it, what it means.

The form, ``--help``, the documentation and the checks all read this table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import SpecError
from ..formatting import parse_bytes, parse_ratio
from .choices import ATTENTIONS, PRECISIONS

LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of a spec.

    Attributes:
        name: The key, as ``--set`` and TOML take it.
        help: What it decides, in a line.
        allowed: What it may hold, in words, as messages say it.
        choices: The closed list of texts, or empty.
        convert: A value of the field's type from a text or a TOML value; ValueError or
            TypeError if it can't be.
        valid: Whether a converted value is in range.
    """

    name: str
    help: str
    allowed: str
    choices: tuple[str, ...] = ()
    convert: Callable[[Any], Any]
    valid: Callable[[Any], bool]

    def parse(self, value: object) -> Any:
        """The field's value, in its one canonical form.

        Raises:
            SpecError: Not of the field's type, or out of its range.
        """
        try:
            converted = self.convert(value)
            fine = self.valid(converted)
        except (ValueError, TypeError, OverflowError):
            fine = False
        if not fine:
            raise SpecError(self.name, value, self._message(value))
        return converted

    def _message(self, value: object) -> str:
        typed = value if isinstance(value, str) else ""
        close = difflib.get_close_matches(typed, self.choices, n=1, cutoff=0.5)
        return f"{self.allowed}; did you mean {close[0]!r}?" if close else self.allowed


def field_named(name: str, value: object = "…") -> Field:
    """The field of that name.

    Args:
        name: The key.
        value: What it was given, for the message.

    Raises:
        SpecError: No such key; names the nearest one.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    close = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise SpecError(name, value, f"no such key; {hint}known: {', '.join(_BY_NAME)}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value) + 0.0  # one zero, not two


def _count(name: str, help: str, low: int = 1, high: int = LARGEST, zero: str = "") -> Field:
    allowed = f"a whole number from {low} to {high}" + (f" ({zero})" if zero else "")
    return Field(
        name=name,
        help=help,
        allowed=allowed,
        convert=_whole_number,
        valid=lambda value: low <= value <= high,
    )


def _choice(name: str, help: str, *choices: str) -> Field:
    def convert(value: Any) -> str:
        # TOML and people write on/off as booleans; no field here has both readings.
        if isinstance(value, bool):
            return "on" if value else "off"
        return _text(value)

    return Field(
        name=name,
        help=help,
        allowed="one of " + ", ".join(choices),
        choices=choices,
        convert=convert,
        valid=lambda value: value in choices,
    )


def _switch(name: str, help: str) -> Field:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    return Field(
        name=name,
        help=help,
        allowed="true or false",
        choices=("false", "true"),
        convert=lambda value: value if isinstance(value, bool) else words.get(_text(value).lower()),
        valid=lambda value: value is not None,
    )


def _decimal(
    name: str,
    help: str,
    allowed: str,
    low: float,
    high: float,
    convert: Callable[[Any], float] = _number,
) -> Field:
    return Field(
        name=name,
        help=help,
        allowed=allowed,
        convert=convert,
        valid=lambda value: low <= value <= high,  # which nan is not
    )


def _ratio(value: Any) -> float:
    return parse_ratio(value) if isinstance(value, str) else _number(value)


def _bytes(value: Any) -> int:
    return parse_bytes(value) if isinstance(value, str) else _whole_number(value)


def _warmup(value: Any) -> int | str:
    return "auto" if isinstance(value, str) and value.strip() == "auto" else _whole_number(value)


def _device(value: Any) -> str:
    text = _text(value)
    return "cuda:0" if text == "cuda" else text


FIELDS: tuple[Field, ...] = (
    Field(
        name="model",
        help="preset of a model size",
        allowed="the name of a preset, such as tiny or cs336-2025/large",
        convert=_text,
        valid=lambda value: len(value) <= 100,
    ),
    _count("vocab", "rows of the embedding and of the head", low=0, zero="0: from the preset"),
    _count("d_model", "width of the residual stream", low=0, zero="0: from the preset"),
    _count("d_ff", "inner width of the feed-forward", low=0, zero="0: from the preset"),
    _count("layers", "number of blocks", low=0, high=10_000, zero="0: from the preset"),
    _count("heads", "attention heads per block", low=0, zero="0: from the preset"),
    _count("batch", "sequences per step", high=2**20),
    _count("context", "tokens per sequence", high=2**24),
    _choice(
        "precision",
        "fp32 is IEEE; tf32 lets matrix products round; bf16 and fp16 are autocast",
        *(row.name for row in PRECISIONS),
    ),
    _choice(
        "attention",
        "naive materialises the scores; sdpa lets torch choose the kernel",
        *(row.name for row in ATTENTIONS),
    ),
    _choice(
        "step",
        "what one step does; forward keeps the graph, inference does not; without weights to "
        "train, in bare attention, train is forward+backward",
        *("inference", "forward", "forward+backward", "train"),
    ),
    _choice(
        "optimizer",
        "used by step = train",
        *("adamw-loop", "adamw-foreach", "adamw-fused", "sgd"),
    ),
    _decimal("clip", "gradient norm to clip to; 0 is off", "a number from 0 to 1e9", 0, 1e9),
    _choice(
        "compile",
        "torch.compile mode",
        *("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    ),
    _choice("compile_backend", "torch.compile backend", "inductor", "aot_eager", "eager"),
    _choice("compile_scope", "compile the whole model, or each block", "whole", "block"),
    _switch("compile_fullgraph", "refuse graph breaks"),
    _choice("compile_dynamic", "dynamic shapes", "auto", "on", "off"),
    _choice("compile_cache", "cold starts from empty compiler caches", "warm", "cold"),
    Field(
        name="warmup",
        help="steps before measuring; auto goes on until they agree",
        allowed="auto, or a whole number from 0 to 10000",
        convert=_warmup,
        valid=lambda value: value == "auto" or 0 <= value <= 10_000,
    ),
    _count("steps", "measure exactly so many steps", 0, 1_000_000, zero="0: until settled"),
    _decimal(
        "until",
        "stop when the 95 % interval's half-width is this share of the median",
        "a share from 0.000001 to 1, such as 0.005 or 0.5%",
        1e-6,
        1,
        _ratio,
    ),
    _count("max_steps", "stop after so many steps even if not settled", high=1_000_000),
    _decimal(
        "max_seconds", "stop after so long even if not settled", "0.1 to 86400 seconds", 0.1, 86400
    ),
    _choice("sync", "every-step waits for the device after each step", "batched", "every-step"),
    Field(
        name="device",
        help="auto is the first CUDA device, else the CPU",
        allowed="auto, cpu, cuda or cuda:N",
        convert=_device,
        valid=lambda value: bool(re.fullmatch(r"auto|cpu|cuda:(0|[1-9][0-9]{0,2})", value)),
    ),
    _count(
        "threads",
        "host threads for operators",
        0,
        4096,
        zero="0: OMP_NUM_THREADS, else all cores but one",
    ),
    _count("seed", "seed of weights and data", low=0),
    Field(
        name="memory_limit",
        help="cap on what the allocator may hold, to emulate a smaller device",
        allowed="bytes in binary units such as 24GiB, at least 1MiB; 0 is off",
        convert=_bytes,
        valid=lambda value: value == 0 or 2**20 <= value <= 2**50,
    ),
    _choice(
        "workload",
        "what is run; all but transformer are experiments of the studies",
        *("transformer", "attention", "accumulation", "autocast-dtypes", "all-reduce"),
    ),
    _count("checkpoint", "blocks per recomputed segment", 0, 10_000, zero="0: keep everything"),
    _count("ranks", "processes that work together", 1, 1024),
    _choice(
        "parallel",
        "how ranks share gradients or weights",
        *("none", "naive", "flat", "overlap", "bucketed", "ddp", "fsdp2"),
    ),
    _decimal("bucket_mib", "gradients sent at once", "0.001 to 65536 MiB", 0.001, 65536),
    _choice("comm_backend", "auto is nccl on CUDA, gloo on the CPU", "auto", "nccl", "gloo"),
    _switch("shard_optimizer", "each rank keeps a part of the optimizer's state"),
    _decimal("payload_mib", "size of what all-reduce sums", "0 to 65536 MiB", 0, 65536),
    _choice(
        "mask",
        "of bare attention; auto is none there, as in the write-ups, and causal in a model",
        *("auto", "causal", "none"),
    ),
)

_BY_NAME = {field.name: field for field in FIELDS}
