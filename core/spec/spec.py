"""The spec of a measurement: flat, immutable, checked, with an identity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.record.blocks import PASSES, PassName
from sysbench.core.spec.choices import (
    ATTENTIONS,
    PRECISIONS,
    PRODUCT_MULTIPLE,
    Attention,
    AttentionName,
    Precision,
    PrecisionName,
    attention_named,
    precision_named,
)
from sysbench.core.spec.choices import OWN_ATTENTION as OWN_ATTENTION
from sysbench.core.spec.fields import FIELDS, field_named, group_keys
from sysbench.core.spec.models import CUSTOM, Dimensions, find_model
from sysbench.core.spec.own_model import (
    ARGUMENT,
    JOB,
    OWN_MODEL,
    WAYS,
    argument_settings,
    is_own,
    model_setting,
    source_of,
    with_arguments,
)


def check_together(spec: RunSpec) -> None:
    """Raise SpecError for the first key that conflicts with the others."""
    if spec.is_job or spec.command:
        _check_job(spec)
        return
    _check_subject(spec)
    if not spec.is_own:
        _check_dimensions(spec)
    _check_workload(spec)
    _check_device(spec)
    _check_cpu_backward(spec)
    _check_cache(spec)
    _check_parallel(spec)
    _check_accumulation(spec)


def _check_job(spec: RunSpec) -> None:
    if not (spec.is_job and spec.command and spec.model):
        raise SpecError("workload", spec.workload, "`sysbench-tui watch -- COMMAND` sets it")


def _check_subject(spec: RunSpec) -> None:
    """Check keys that are only for users' models, or only for the built-in ones."""
    if spec.is_own:
        _check_own(spec)
        return
    if spec.workload == OWN_MODEL:
        raise SpecError("workload", spec.workload, f"needs model = {WAYS}")
    if spec.attention_row.is_of_model:
        raise SpecError("attention", spec.attention, "a kernel; own is for your own models")
    if spec.optimizer == "custom":
        raise SpecError("optimizer", spec.optimizer, "a name; custom is for your own models")
    for name in ("batch", "context"):
        if not getattr(spec, name):
            raise SpecError(name, 0, "an integer ≥ 1; 0 is for your own models")
    for name in ("model_args", "model_file", "model_source", "trust_code"):
        if getattr(spec, name):
            raise SpecError(name, getattr(spec, name), f"needs model = {WAYS}")


def _check_own(spec: RunSpec) -> None:
    is_factory = source_of(spec.model).door != "hf"
    if spec.workload != OWN_MODEL:
        raise SpecError("workload", spec.workload, "leave it out; your own models always run steps")
    if is_factory and not spec.attention_row.is_of_model:
        raise SpecError(
            "attention",
            spec.attention,
            f"leave it out; a factory's attention is its own code; {ARGUMENT}attention=… sets an "
            "argument of it",
        )
    if is_factory and spec.trust_code:
        raise SpecError("trust_code", True, "leave it out; a factory is already your own code")
    if is_factory and spec.checkpoint:
        raise SpecError(
            "checkpoint", spec.checkpoint, "0: only a factory's own code can recompute its blocks"
        )
    if spec.optimizer == "custom" and spec.step != "train":
        raise SpecError("optimizer", spec.optimizer, "needs step = train")
    if spec.shard_optimizer and spec.optimizer == "custom":
        raise SpecError("shard_optimizer", True, "false: the model has its own optimizer")


def _check_dimensions(spec: RunSpec) -> None:
    size = spec.dimensions
    turns = spec.workload != "attention"
    if turns and size.d_model % 2:
        raise SpecError("d_model", size.d_model, "must be even, rotary embeddings turn pairs")
    if size.d_model % size.heads:
        divisors = [n for n in range(1, 257) if size.d_model % (2 * n) == 0]
        near = sorted(divisors, key=lambda n: abs(math.log(n / size.heads)))[:3]
        raise SpecError(
            "heads",
            size.heads,
            f"must divide d_model = {size.d_model}; near: {', '.join(map(str, sorted(near)))}",
        )
    if turns and size.head_dimension % 2:
        raise SpecError(
            "heads",
            size.heads,
            f"d_model / heads = {size.head_dimension} must be even, rotary embeddings turn pairs",
        )


def _check_workload(spec: RunSpec) -> None:
    if spec.workload == "attention":
        for name in ("vocab", "d_ff", "layers"):
            if getattr(spec, name) != 1:
                raise SpecError(name, getattr(spec, name), "leave it out; bare attention has none")
    elif spec.mask != "auto":
        raise SpecError("mask", spec.mask, "auto, unless workload = attention")
    if spec.checkpoint and spec.workload not in ("transformer", OWN_MODEL):
        raise SpecError("checkpoint", spec.checkpoint, "0, unless workload = transformer")
    if spec.is_own:
        if spec.checkpoint > 1 or (spec.checkpoint and not spec.has_backward):
            raise SpecError(
                "checkpoint",
                spec.checkpoint,
                "0 or 1: each layer separately, in steps with a backward",
            )
    elif spec.checkpoint > spec.layers or (spec.checkpoint and not spec.has_backward):
        raise SpecError(
            "checkpoint", spec.checkpoint, f"at most {spec.layers} blocks, in steps with a backward"
        )
    if (spec.payload_mib > 0) != (spec.workload == "all-reduce"):
        raise SpecError("payload_mib", spec.payload_mib, "above 0 for all-reduce, else 0")


def _check_cache(spec: RunSpec) -> None:
    if not spec.has_cache:
        return
    if spec.workload not in ("transformer", OWN_MODEL):
        raise SpecError("step", spec.step, "inference: without a model there is no cache")
    if spec.attention_row.compiles:
        raise SpecError("attention", spec.attention, f"naive or sdpa, for step = {spec.step}")


def _check_accumulation(spec: RunSpec) -> None:
    if spec.accumulation == 1:
        return
    has_model = spec.workload in ("transformer", OWN_MODEL)
    if not spec.has_backward or not has_model:
        allowed = "1, unless the step of a model has a backward pass"
        raise SpecError("accumulation", spec.accumulation, allowed)
    if spec.parallel != "none":
        raise SpecError("accumulation", spec.accumulation, "1, with several ranks")


def _check_parallel(spec: RunSpec) -> None:
    wants_ranks = spec.parallel != "none" or spec.workload == "all-reduce"
    if wants_ranks != (spec.ranks > 1):
        allowed = "at least 2 for this" if wants_ranks else "1, unless parallel or all-reduce"
        raise SpecError("ranks", spec.ranks, allowed)
    has_model = spec.workload in ("transformer", OWN_MODEL)
    if spec.parallel != "none" and (spec.step != "train" or not has_model):
        raise SpecError("parallel", spec.parallel, "none, unless a transformer is trained")
    if spec.shard_optimizer and spec.parallel in ("none", "fsdp2"):
        raise SpecError(
            "shard_optimizer", True, "false, unless ranks share gradients; fsdp2 shards all state"
        )
    if spec.ranks > 1 and spec.compile != "off":
        raise SpecError("compile", spec.compile, "off, with several ranks")
    if spec.comm_backend == "nccl" and spec.device == "cpu":
        raise SpecError("comm_backend", "nccl", "moves data between CUDA devices; on the CPU gloo")


def _check_cpu_backward(spec: RunSpec) -> None:
    kernel = spec.attention_row
    if spec.device == "cpu" and spec.keeps_graph and not kernel.cpu_backward:
        raise SpecError(
            "attention",
            kernel.name,
            f"on the CPU torch has {kernel.name} attention for step = inference only; take that, "
            f"or {_listed(_ON_CPU, 'or')}",
        )


def _check_device(spec: RunSpec) -> None:
    precision, kernel = spec.precision_row, spec.attention_row
    if spec.on_cuda and precision.compute not in kernel.cuda_dtypes:
        cast = [
            row.name for row in PRECISIONS if row.autocast in kernel.cuda_dtypes and not row.recipe
        ]
        others = [row.name for row in _EAGER if precision.compute in row.cuda_dtypes]
        raise SpecError(
            "attention",
            kernel.name,
            f"this CUDA kernel supports {_listed(cast, 'and')} only; for {precision.name} take "
            f"{_listed(others, 'or')}",
        )
    if spec.device != "cpu":
        if precision.recipe:
            _check_recipe(spec)
        return
    if precision.cuda_only:
        names = [row.name for row in PRECISIONS if not row.cuda_only]
        raise SpecError(
            "precision",
            precision.name,
            f"exists on CUDA devices only; on the CPU take {_listed(names, 'or')}",
        )
    if kernel.cuda_only:
        allowed = f"a CUDA kernel; on the CPU take {_listed(_ON_CPU, 'or')}"
        raise SpecError("attention", kernel.name, allowed)


def _check_recipe(spec: RunSpec) -> None:
    other = spec.precision_row.autocast_only
    if spec.workload not in ("transformer", OWN_MODEL):
        allowed = f"{other}: without a model there are no linear layers"
        raise SpecError("precision", spec.precision, allowed)
    if spec.ranks > 1:
        allowed = f"{other}, with several ranks: weights in {spec.precision} are not gathered"
        raise SpecError("precision", spec.precision, allowed)
    if spec.precision_row.keeps_weights:
        if spec.keeps_graph:
            steps = "inference, prefill or decode, with precision ="
            allowed = f"{steps} {spec.precision}: its weights have no gradients"
            raise SpecError("step", spec.step, allowed)
        return
    if not spec.keeps_graph:
        allowed = f"forward or train, with precision = {spec.precision}: torchao's layers for "
        raise SpecError("step", spec.step, f"{allowed}training do not run in inference mode")
    tokens = spec.tokens_per_forward
    if not spec.is_own and spec.has_backward and tokens % PRODUCT_MULTIPLE:
        allowed = (
            f"a batch × context divisible by {PRODUCT_MULTIPLE} in {spec.precision}: a weight's "
        )
        allowed += f"gradient is a product over the {tokens:,} tokens"
        raise SpecError("context", spec.context, allowed)


_EAGER = [row for row in ATTENTIONS if not row.compiles and not row.is_of_model]
"""Kernels that a message may recommend: they need no compiler."""
_ON_CPU = [row.name for row in _EAGER if not row.cuda_only]


def _listed(names: Sequence[str], conjunction: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


NUMERIC_WORKLOADS = ("accumulation", "autocast-dtypes")
"""Workloads that measure values and types, not times: they have no steps."""


StepKind = Literal["inference", "prefill", "decode", "forward", "forward+backward", "train"]
Optimizer = Literal["adamw-loop", "adamw-foreach", "adamw-fused", "sgd", "custom"]
CompileMode = Literal[
    "off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]
WorkloadKind = Literal[
    "transformer", "attention", "accumulation", "autocast-dtypes", "all-reduce", "own-model", "job"
]
Parallel = Literal["none", "naive", "flat", "overlap", "bucketed", "ddp", "fsdp2"]
Mask = Literal["auto", "causal", "none"]

DIMENSION_NAMES = group_keys("dimensions")
JOB_KEYS = ("model", "workload", "command", "device")
"""Keys of a watched command that say something about it."""
PLACE_NAMES = ("model_file", "model_source")
"""Keys that follow from ``model`` on a machine, so users need not set them."""


class _Default(str):
    """A default that depends on the model, distinct from the same text set by the user."""

    __slots__ = ()


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides a measurement. Equal identity means "the same".

    Either ``model`` names a preset, or all five dimensions are set and ``model`` is ``custom``.
    Bare attention (``workload = attention``) has d_model and heads only; its other dimensions are
    1. A user's model (``FILE.py:FACTORY``, ``MODULE:FACTORY`` or ``hf:PATH``) has no dimensions
    here, but arguments of its own in ``model_args``. `sysbench.core.spec.fields.FIELDS` has
    meaning, unit and allowed values of each key.

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
    precision: PrecisionName = "fp32"
    attention: AttentionName = cast(AttentionName, _Default("naive"))
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
    workload: WorkloadKind = "transformer"
    checkpoint: int = 0
    ranks: int = 1
    parallel: Parallel = "none"
    bucket_mib: float = 25.0
    comm_backend: Literal["auto", "nccl", "gloo"] = "auto"
    shard_optimizer: bool = False
    payload_mib: float = 0.0
    mask: Mask = "auto"
    model_args: str = ""
    model_file: str = ""
    model_source: str = ""
    command: str = ""
    trust_code: bool = False
    accumulation: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.attention, _Default) and is_own(self.model):
            msgspec.structs.force_setattr(self, "attention", OWN_ATTENTION)
        for field in FIELDS:
            value = field.parse(getattr(self, field.name))
            msgspec.structs.force_setattr(self, field.name, value)
        if self.is_job:
            for name in ("batch", "context"):  # its own
                msgspec.structs.force_setattr(self, name, 0)
        elif self.workload == "attention":
            self._complete_attention()
        elif self.is_own:
            self._complete_own()
        else:
            self._complete_model()
        check_together(self)

    def _complete_attention(self) -> None:
        if self.model not in ("", CUSTOM):
            raise SpecError(
                "model", self.model, "leave it out; bare attention takes d_model and heads"
            )
        if not self.d_model:
            raise SpecError("d_model", 0, "the width of q, k and v: bare attention needs it")
        msgspec.structs.force_setattr(self, "model", CUSTOM)
        for name in DIMENSION_NAMES:
            msgspec.structs.force_setattr(self, name, getattr(self, name) or 1)
        if self.step == "train":  # without weights there is no optimizer: the same step
            msgspec.structs.force_setattr(self, "step", "forward+backward")

    def _complete_own(self) -> None:
        source_of(self.model)
        for name in DIMENSION_NAMES:
            if getattr(self, name):
                raise SpecError(
                    name,
                    getattr(self, name),
                    f"leave it out; it sizes the built-in model; {ARGUMENT}NAME=VALUE is an "
                    "argument of yours",
                )
        if self.workload == "transformer":
            msgspec.structs.force_setattr(self, "workload", OWN_MODEL)

    def _complete_model(self) -> None:
        dimensions = {name: getattr(self, name) for name in DIMENSION_NAMES if getattr(self, name)}
        if self.model in ("", CUSTOM) and dimensions:
            missing = [name for name in DIMENSION_NAMES if name not in dimensions]
            if missing:
                name, value = next(iter(dimensions.items()))
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
            preset_value = getattr(preset.dimensions, name)
            if dimensions.get(name, preset_value) != preset_value:
                raise SpecError(
                    name,
                    dimensions[name],
                    f"{preset.name} has {name} = {preset_value}; leave "
                    "model out and give all five dimensions for another size",
                )
            msgspec.structs.force_setattr(self, name, preset_value)

    @property
    def dimensions(self) -> Dimensions:
        return Dimensions(**{name: getattr(self, name) for name in DIMENSION_NAMES})

    @property
    def tokens_per_forward(self) -> int:
        """Tokens that a micro-batch computes; 0 for a model without batch or context."""
        return self.batch * self.new_tokens

    @property
    def new_tokens(self) -> int:
        """Tokens that a step computes of each sequence: all, or the last one in decode."""
        return min(1, self.context) if self.step == "decode" else self.context

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all micro-batches of a step."""
        return self.tokens_per_forward * self.accumulation

    @property
    def on_cuda(self) -> bool:
        """Whether it is a CUDA device; false while the device is still ``auto``."""
        return self.device.startswith("cuda")

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each rank: CUDA devices from ``device`` on, the CPU for all alike."""
        if not self.on_cuda:
            return (self.device,) * self.ranks
        first = int(self.device.partition(":")[2])
        return tuple(f"cuda:{first + rank}" for rank in range(self.ranks))

    @property
    def has_backward(self) -> bool:
        return self.step in ("forward+backward", "train")

    @property
    def has_cache(self) -> bool:
        """Whether the step fills or reads a cache of keys and values."""
        return self.step in ("prefill", "decode")

    @property
    def keeps_graph(self) -> bool:
        """Whether the forward runs in grad mode."""
        return self.step not in ("inference", "prefill", "decode")

    @property
    def has_model(self) -> bool:
        return self.workload in ("transformer", "attention", OWN_MODEL)

    @property
    def is_own(self) -> bool:
        return not self.is_job and is_own(self.model)

    @property
    def is_job(self) -> bool:
        """Whether it is a command of the user's, of which no other key but the device is known."""
        return self.workload == JOB

    @property
    def has_steps(self) -> bool:
        return self.workload not in NUMERIC_WORKLOADS

    @property
    def compiles(self) -> bool:
        """Whether the first step compiles the model or its flex attention."""
        return self.compile != "off" or self.attention_row.compiles

    @property
    def needs_dry_run(self) -> bool:
        """Whether the step has no closed form, but a dry run can predict it."""
        return self.is_own or self.accumulation > 1 or bool(self.precision_row.recipe)

    @property
    def precision_row(self) -> Precision:
        return precision_named(self.precision)

    @property
    def attention_row(self) -> Attention:
        return attention_named(self.attention)

    @property
    def is_causal(self) -> bool:
        """Whether attention is masked, as in the course's models; not in their bare attention."""
        return self.mask == "causal" or (self.mask == "auto" and self.workload != "attention")

    @property
    def possible_passes(self) -> tuple[PassName, ...]:
        """Passes that can measure the workload; an all-reduce has no model to trace."""
        return tuple(
            row.name
            for row in PASSES.values()
            if row.measures_steps == self.has_steps
            and (row.takes_ranks or self.ranks == 1)
            and (row.name == "timing" or self.workload != "all-reduce")
        )

    @property
    def default_passes(self) -> tuple[PassName, ...]:
        return tuple(name for name in self.possible_passes if PASSES[name].is_default)

    @property
    def identity(self) -> str:
        """Hash of the canonical JSON of every field: 16 hexadecimal digits."""
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        values = msgspec.to_builtins(self)
        for field in FIELDS:
            # Runs stored before the key existed keep their identity.
            if field.later and values[field.name] == defaults[field.name]:
                del values[field.name]
        values.pop("model_file", None)  # the same code elsewhere is the same
        return hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:16]

    def known(self) -> dict[str, Any]:
        """Return all keys; of a watched command only those that say something about it."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {key: values[key] for key in JOB_KEYS} if self.is_job else values

    def changed(self, **changes: object) -> RunSpec:
        """Copy with some fields replaced, checked like a new one."""
        if "model" in changes:
            # 0 takes the dimension from the new preset.
            changes = dict.fromkeys(DIMENSION_NAMES, 0) | changes
            if self.is_own != is_own(changes["model"]):
                changes = _OF_ANOTHER_KIND | changes
        elif changes.keys() & set(DIMENSION_NAMES):
            changes = {"model": ""} | changes
        return msgspec.structs.replace(self, **changes)

    def settings(self) -> dict[str, Any]:
        """Return the keys that differ from the defaults, as in ``--set`` and TOML."""
        default = RunSpec()
        custom = self.model == CUSTOM
        always: tuple[str, ...] = DIMENSION_NAMES if custom else ()
        never: tuple[str, ...] = ("model",) if custom else DIMENSION_NAMES
        if self.workload == "attention":
            always, never = ("d_model", "heads"), ("model", "vocab", "d_ff", "layers")
        if self.is_own:
            always, never = (), ("workload", "model_args", *PLACE_NAMES, *DIMENSION_NAMES)
            if self.attention == OWN_ATTENTION:
                never = (*never, "attention")
        settings = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name in always
            or (name not in never and getattr(self, name) != getattr(default, name))
        }
        if self.is_own:
            settings["model"] = model_setting(self.model, self.model_file)
            settings |= argument_settings(self.model_args)
        return settings


_OF_ANOTHER_KIND: dict[str, Any] = {
    "attention": _Default("naive"),
    "workload": "transformer",
    "model_args": "",
    "trust_code": False,
    **dict.fromkeys(PLACE_NAMES, ""),
}
"""Keys to reset if a model changes between the user's and a built-in one."""


def subject(spec: Mapping[str, Any]) -> str:
    """Return the measured subject: the model's name, ``attention-d64``, or the workload."""
    workload = str(spec.get("workload", "transformer"))
    if workload == "attention":
        return f"attention-d{spec['d_model']}"
    return str(spec["model"]) if workload in ("transformer", OWN_MODEL, JOB) else workload


def parse_spec(values: Mapping[str, object]) -> RunSpec:
    """Parse TOML values or ``--set`` texts.

    Raises:
        SpecError: An unknown key, or an invalid value. ``model.NAME`` is an argument of a user's
            model.
    """
    merged = with_arguments(values)
    settings: dict[str, Any] = {
        field_named(name, merged[name]).name: merged[name] for name in merged
    }
    return RunSpec(**settings)
