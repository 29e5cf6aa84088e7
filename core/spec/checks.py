"""Checks of a spec's keys against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sysbench.core.errors import SpecError
from sysbench.core.spec.choices import ATTENTIONS, PRECISIONS
from sysbench.core.spec.own_model import ARGUMENT, OWN_MODEL, WAYS, source_of

if TYPE_CHECKING:
    from sysbench.core.spec.spec import RunSpec


def check_together(spec: RunSpec) -> None:
    """Check the keys against each other.

    Raises:
        SpecError: For the first key that does not go with the others.
    """
    _check_subject(spec)
    if not spec.is_own:
        _check_dimensions(spec)
    _check_workload(spec)
    _check_device(spec)
    _check_cpu_backward(spec)
    _check_parallel(spec)


def _check_subject(spec: RunSpec) -> None:
    """What belongs to the user's models, or to the built-in ones alone."""
    if spec.is_own:
        _check_own(spec)
        return
    if spec.workload == OWN_MODEL:
        raise SpecError("workload", spec.workload, f"left out: model = {WAYS} says it")
    if spec.attention_row.is_of_model:
        raise SpecError("attention", spec.attention, "a kernel; own is of models of yours")
    if spec.optimizer == "custom":
        raise SpecError("optimizer", spec.optimizer, "a name; custom is of models of yours")
    for name in ("batch", "context"):
        if not getattr(spec, name):
            raise SpecError(name, 0, "a whole number from 1 on; 0 is of models of yours")
    for name in ("model_args", "model_file", "model_source", "trust_code"):
        if getattr(spec, name):
            raise SpecError(name, getattr(spec, name), f"left out, unless model = {WAYS}")


def _check_own(spec: RunSpec) -> None:
    is_factory = source_of(spec.model).door != "hf"
    if spec.workload != OWN_MODEL:
        raise SpecError("workload", spec.workload, "left out: a model of yours takes steps")
    if is_factory and not spec.attention_row.is_of_model:
        raise SpecError(
            "attention",
            spec.attention,
            f"left out: a factory's attention is its own code; {ARGUMENT}attention=… could be an "
            "argument of it",
        )
    if is_factory and spec.trust_code:
        raise SpecError("trust_code", True, "left out: a factory is your own code")
    if is_factory and spec.checkpoint:
        raise SpecError(
            "checkpoint", spec.checkpoint, "0: a factory's blocks recompute by its own code only"
        )
    if spec.optimizer == "custom" and spec.step != "train":
        raise SpecError("optimizer", spec.optimizer, "left out, unless step = train")
    if spec.shard_optimizer and spec.optimizer == "custom":
        raise SpecError("shard_optimizer", True, "false: the model brings its own optimizer")


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
                raise SpecError(name, getattr(spec, name), "left out: bare attention has none")
    elif spec.mask != "auto":
        raise SpecError("mask", spec.mask, "auto, unless workload = attention")
    if spec.checkpoint and spec.workload not in ("transformer", OWN_MODEL):
        raise SpecError("checkpoint", spec.checkpoint, "0, unless workload = transformer")
    if spec.is_own:
        if spec.checkpoint > 1 or (spec.checkpoint and not spec.has_backward):
            raise SpecError(
                "checkpoint", spec.checkpoint, "0 or 1, each layer by itself; with a backward"
            )
    elif spec.checkpoint > spec.layers or (spec.checkpoint and not spec.has_backward):
        raise SpecError(
            "checkpoint", spec.checkpoint, f"at most {spec.layers} blocks, in steps with a backward"
        )
    if (spec.payload_mib > 0) != (spec.workload == "all-reduce"):
        raise SpecError("payload_mib", spec.payload_mib, "above 0 for all-reduce, else 0")


def _check_parallel(spec: RunSpec) -> None:
    wants_ranks = spec.parallel != "none" or spec.workload == "all-reduce"
    if wants_ranks != (spec.ranks > 1):
        allowed = "at least 2 for this" if wants_ranks else "1, unless parallel or all-reduce"
        raise SpecError("ranks", spec.ranks, allowed)
    has_model = spec.workload in ("transformer", OWN_MODEL)
    if spec.parallel != "none" and (spec.step != "train" or not has_model):
        raise SpecError("parallel", spec.parallel, "none, unless a transformer takes train steps")
    if spec.shard_optimizer and spec.parallel in ("none", "fsdp2"):
        raise SpecError(
            "shard_optimizer", True, "false, unless ranks share gradients; fsdp2 divides all state"
        )
    if spec.ranks > 1 and spec.compile != "off":
        raise SpecError("compile", spec.compile, "off, with several ranks")
    if spec.comm_backend == "nccl" and spec.device == "cpu":
        raise SpecError("comm_backend", "nccl", "moves data between CUDA devices; on the CPU gloo")


def _check_cpu_backward(spec: RunSpec) -> None:
    kernel = spec.attention_row
    if spec.device == "cpu" and spec.step != "inference" and not kernel.cpu_backward:
        raise SpecError(
            "attention",
            kernel.name,
            f"on the CPU torch has {kernel.name} attention for step = inference only; take that, "
            f"or {_listed(_ON_CPU, 'or')}",
        )


def _check_device(spec: RunSpec) -> None:
    precision, kernel = spec.precision_row, spec.attention_row
    if spec.on_cuda and precision.compute not in kernel.cuda_dtypes:
        cast = [row.name for row in PRECISIONS if row.autocast in kernel.cuda_dtypes]
        others = [row.name for row in _EAGER if precision.compute in row.cuda_dtypes]
        raise SpecError(
            "attention",
            kernel.name,
            f"this CUDA kernel takes {_listed(cast, 'and')} only; for {precision.name} take "
            f"{_listed(others, 'or')}",
        )
    if spec.device != "cpu":
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


_EAGER = [row for row in ATTENTIONS if not row.compiles and not row.is_of_model]
"""Kernels that a message may recommend: they need no compiler."""
_ON_CPU = [row.name for row in _EAGER if not row.cuda_only]


def _listed(names: Sequence[str], conjunction: str) -> str:
    """``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last
