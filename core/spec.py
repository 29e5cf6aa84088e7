"""What to measure: the spec, its checks, its identity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from .dimensions import Dimensions
from .errors import SpecError
from .presets import CUSTOM, find_model
from .spec_fields import FIELDS, field_named

Precision = Literal["fp32", "tf32", "bf16", "fp16", "bf16-pure"]
Attention = Literal["naive", "sdpa", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math"]
StepKind = Literal["inference", "forward", "forward+backward", "train"]
Optimizer = Literal["adamw-loop", "adamw-foreach", "adamw-fused", "sgd"]
CompileMode = Literal[
    "off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]
PassName = Literal["timing", "trace", "memory"]

PASSES: tuple[PassName, ...] = get_args(PassName)
DIMENSION_NAMES = ("vocab", "d_model", "d_ff", "layers", "heads")


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides a measurement. Equal identity means "the same".

    Either ``model`` names a preset, or all five dimensions are given and ``model`` is
    ``custom``. What each key means, its unit and what it may hold is in
    `sysbench.core.spec_fields.FIELDS`, which the form and ``--help`` show too.

    Raises:
        SpecError: From the constructor, naming the field, the value and what is allowed.
    """

    model: str = ""
    vocab: int = 0
    d_model: int = 0
    d_ff: int = 0
    layers: int = 0
    heads: int = 0
    batch: int = 4
    context: int = 128
    precision: Precision = "fp32"
    attention: Attention = "naive"
    step: StepKind = "train"
    optimizer: Optimizer = "adamw-foreach"
    clip: float = 0.0
    compile: CompileMode = "off"
    compile_backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    compile_scope: Literal["whole", "block"] = "whole"
    compile_fullgraph: bool = False
    compile_dynamic: Literal["auto", "on", "off"] = "auto"
    compile_cache: Literal["warm", "cold"] = "warm"
    warmup: int | Literal["auto"] = "auto"
    steps: int = 0
    until: float = 0.005
    max_steps: int = 100
    max_seconds: float = 20.0
    sync: Literal["batched", "every-step"] = "batched"
    device: str = "auto"
    threads: int = 0
    seed: int = 0
    memory_limit: int = 0

    def __post_init__(self) -> None:
        for field in FIELDS:
            value = field.parse(getattr(self, field.name))
            msgspec.structs.force_setattr(self, field.name, value)
        self._settle_model()
        _check_dimensions(self.dimensions)
        _check_device(self)

    def _settle_model(self) -> None:
        """Fill the dimensions from the preset, or the name from the dimensions."""
        given = {name: getattr(self, name) for name in DIMENSION_NAMES if getattr(self, name)}
        if self.model in ("", CUSTOM) and given:
            missing = [name for name in DIMENSION_NAMES if name not in given]
            if missing:
                name, value = next(iter(given.items()))
                raise SpecError(
                    name, value, f"a model without a preset also needs {', '.join(missing)}"
                )
            msgspec.structs.force_setattr(self, "model", CUSTOM)
            return
        if self.model == CUSTOM:
            raise SpecError("model", CUSTOM, f"needs all of {', '.join(DIMENSION_NAMES)}")
        preset = find_model(self.model or "tiny")
        msgspec.structs.force_setattr(self, "model", preset.name)
        for name in DIMENSION_NAMES:
            fixed = getattr(preset.dimensions, name)
            if given.get(name, fixed) != fixed:
                raise SpecError(
                    name,
                    given[name],
                    f"{preset.name} has {name} = {fixed}; leave "
                    "model out and give all five dimensions for another size",
                )
            msgspec.structs.force_setattr(self, name, fixed)

    @property
    def dimensions(self) -> Dimensions:
        """The shape of the model."""
        return Dimensions(**{name: getattr(self, name) for name in DIMENSION_NAMES})

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step processes: batch times context."""
        return self.batch * self.context

    @property
    def on_cuda(self) -> bool:
        """Whether the device is a CUDA device; false while it is still ``auto``."""
        return self.device.startswith("cuda")

    @property
    def has_backward(self) -> bool:
        """Whether a step runs the backward pass."""
        return self.step in ("forward+backward", "train")

    @property
    def identity(self) -> str:
        """Hash of the canonical JSON of every field: 16 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]

    def changed(self, **changes: object) -> RunSpec:
        """A copy with some fields replaced, checked like a new one."""
        if "model" in changes:
            changes = dict.fromkeys(DIMENSION_NAMES, 0) | changes
        elif changes.keys() & set(DIMENSION_NAMES):
            changes = {"model": ""} | changes
        return msgspec.structs.replace(self, **changes)

    def settings(self) -> dict[str, Any]:
        """The keys that differ from the defaults, as ``--set`` and TOML take them."""
        default = RunSpec()
        custom = self.model == CUSTOM
        always, never = (DIMENSION_NAMES, ("model",)) if custom else ((), DIMENSION_NAMES)
        return {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name in always
            or (name not in never and getattr(self, name) != getattr(default, name))
        }


def parse_spec(values: Mapping[str, object]) -> RunSpec:
    """A spec from TOML values or ``--set`` texts.

    Raises:
        SpecError: An unknown key, or a value that the field does not allow.
    """
    known: dict[str, Any] = {field_named(name, values[name]).name: values[name] for name in values}
    return RunSpec(**known)


def _check_dimensions(size: Dimensions) -> None:
    if size.d_model % 2:
        raise SpecError("d_model", size.d_model, "must be even, rotary embeddings turn pairs")
    if size.d_model % size.heads:
        divisors = [n for n in range(1, 257) if size.d_model % (2 * n) == 0]
        near = sorted(divisors, key=lambda n: abs(math.log(n / size.heads)))[:3]
        raise SpecError(
            "heads",
            size.heads,
            f"must divide d_model = {size.d_model}; near: {', '.join(map(str, sorted(near)))}",
        )
    if size.head_dimension % 2:
        raise SpecError(
            "heads",
            size.heads,
            f"d_model / heads = {size.head_dimension} must be even, rotary embeddings turn pairs",
        )


def _check_device(spec: RunSpec) -> None:
    if spec.on_cuda:
        halves_only = spec.attention in ("sdpa-flash", "sdpa-cudnn")
        if halves_only and spec.precision in ("fp32", "tf32"):
            raise SpecError(
                "attention",
                spec.attention,
                f"this CUDA kernel takes bf16 and fp16 only; for {spec.precision} take naive, "
                "sdpa, sdpa-efficient or sdpa-math",
            )
    if spec.device != "cpu":
        return
    if spec.precision == "tf32":
        raise SpecError(
            "precision",
            "tf32",
            "exists on CUDA devices only; on the CPU take fp32, bf16, fp16 or bf16-pure",
        )
    if spec.attention in ("sdpa-efficient", "sdpa-cudnn"):
        raise SpecError(
            "attention",
            spec.attention,
            "a CUDA kernel; on the CPU take naive, sdpa, sdpa-flash or sdpa-math",
        )
