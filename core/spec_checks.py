"""What keys of a spec may not say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import SpecError

if TYPE_CHECKING:
    from .spec.spec import PassName, RunSpec

NUMERIC_WORKLOADS = ("accumulation", "autocast-dtypes")
"""What they find are values and types, not times: they have no steps."""


def check_together(spec: RunSpec) -> None:
    """Raises SpecError for the first key that does not go with the others."""
    _check_dimensions(spec)
    _check_workload(spec)
    _check_device(spec)
    _check_flex(spec)
    _check_parallel(spec)


def check_passes(spec: RunSpec, passes: Sequence[PassName]) -> None:
    """Raises SpecError for a pass that the spec's workload has no use for."""
    numeric = spec.workload in NUMERIC_WORKLOADS
    for name in passes:
        if spec.ranks > 1 and name != "timing":
            raise SpecError("passes", name, "timing, the only pass of several ranks")
        if numeric != (name == "numerics"):
            allowed = (
                f"numerics, the only pass of workload = {spec.workload}, which has no steps"
                if numeric
                else f"one that measures steps; numerics is for {' and '.join(NUMERIC_WORKLOADS)}"
            )
            raise SpecError("passes", name, allowed)


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
    if spec.checkpoint and spec.workload != "transformer":
        raise SpecError("checkpoint", spec.checkpoint, "0, unless workload = transformer")
    if spec.checkpoint > spec.layers or (spec.checkpoint and not spec.has_backward):
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
    if spec.parallel != "none" and (spec.step != "train" or spec.workload != "transformer"):
        raise SpecError("parallel", spec.parallel, "none, unless a transformer takes train steps")
    if spec.shard_optimizer and spec.parallel in ("none", "fsdp2"):
        raise SpecError(
            "shard_optimizer", True, "false, unless ranks share gradients; fsdp2 divides all state"
        )
    if spec.ranks > 1 and spec.compile != "off":
        raise SpecError("compile", spec.compile, "off, with several ranks")
    if spec.comm_backend == "nccl" and spec.device == "cpu":
        raise SpecError("comm_backend", "nccl", "moves data between CUDA devices; on the CPU gloo")


def _check_flex(spec: RunSpec) -> None:
    if spec.attention == "flex" and spec.device == "cpu" and spec.step != "inference":
        raise SpecError(
            "attention",
            "flex",
            "on the CPU torch has flex attention for step = inference only; take that, or naive, "
            "sdpa, sdpa-flash or sdpa-math",
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
