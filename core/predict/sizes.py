"""Bytes of the recurring tensors of a step, by precision and kind of device."""

from __future__ import annotations

from dataclasses import dataclass

from sysbench.core.predict.allocator_settings import MIB
from sysbench.core.spec.choices import DTYPE_BYTES
from sysbench.core.spec.spec import RunSpec

FLOAT_BYTES = DTYPE_BYTES["float32"]
"""Bytes per element of the dtype to which autocast widens."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes per element, by the tensor's purpose.

    Attributes:
        weight: Parameters, their gradients and the optimizer's state.
        compute: Inputs and results of matrix products.
        softmax: Naive attention from the exponentials on: CUDA's autocast runs ``exp`` and ``sum``
            in float32, the CPU's leaves their dtype.
        loss: Log-probabilities and their gradient. The CPU's autocast makes the whole loss float32,
            CUDA's only the part after the log-softmax.
        loss_copy: The float32 copy of the log-probabilities that CUDA's autocast makes, or 0.
        fused_norm: On CUDA a norm is one kernel, which keeps its input and a number per row; on the
            CPU a chain of operations, which keeps the normalised input too.
    """

    weight: int
    compute: int
    residual: int
    softmax: int
    loss: int
    loss_copy: int
    fused_norm: bool

    @property
    def autocast(self) -> bool:
        return self.weight != self.compute


def widths_of(spec: RunSpec) -> Widths:
    """Widths of the spec's precision in torch 2.13, on the CPU or on any other device."""
    cpu, precision = spec.device == "cpu", spec.precision_row
    weight, compute = precision.weight_bytes, precision.compute_bytes
    if precision.autocast is None:
        return Widths(weight, weight, weight, weight, weight, 0, not cpu)
    if cpu:
        return Widths(weight, compute, weight, compute, FLOAT_BYTES, 0, False)
    return Widths(weight, compute, weight, FLOAT_BYTES, compute, FLOAT_BYTES, True)


class Sizes:
    """Bytes of the recurring tensors of one spec, and elements of its weights.

    Attributes:
        x, x_residual, x_float: (batch, context, d_model) in the compute width, in the residual
            stream's, and in float32.
        f: (batch, context, d_ff) in the compute width.
        scores, scores_soft, scores_float: (batch, heads, context, context) likewise.
        rows_soft, rows_float: (batch, heads, context).
        rstd: (batch, context), float32.
        logits, logits_loss, logits_copy: (batch, context, vocab) in the three widths.
            With a cache the logits are the last token's, and in decode the queries, too.
        cache: Keys and values of a block, for ``context`` tokens of each sequence; 0 without one.
        rotary: The two tables that rotate queries and keys, in the compute width.
        square, wide, table: Elements of a projection, of a feed-forward matrix, and of the
            embedding or the head.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        size, width = spec.dimensions, widths_of(spec)
        self.size, self.width = size, width
        x = spec.tokens_per_forward * size.d_model
        self.x, self.x_residual, self.x_float = x * width.compute, x * width.residual, x * 4
        self.f = spec.tokens_per_forward * size.d_ff * width.compute
        rows = spec.batch * size.heads * spec.new_tokens
        self.rows_soft, self.rows_float = rows * width.softmax, rows * 4
        scores = rows * spec.context
        self.scores, self.scores_soft = scores * width.compute, scores * width.softmax
        self.scores_float = scores * 4
        self.rstd = spec.tokens_per_forward * 4
        logits = (spec.batch if spec.has_cache else spec.tokens_per_forward) * size.vocab
        self.logits, self.logits_loss = logits * width.compute, logits * width.loss
        self.logits_copy = logits * width.loss_copy
        cached = spec.batch * spec.context * size.d_model if spec.has_cache else 0
        self.cache = 2 * cached * width.compute
        self.rotary = 2 * spec.new_tokens * size.head_dimension * width.compute
        self.square, self.wide = size.d_model**2, size.d_model * size.d_ff
        self.table = size.vocab * size.d_model


HOPPER_WORKSPACE = 32 * MIB
"""Bytes that torch gives each cuBLAS handle on Hopper and Blackwell: seen with torch 2.12 on 9.0,
10.0, 10.3 and 12.0."""

WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
"""Bytes per handle on other devices, 8.125 MiB: ``:4096:2:16:8`` in ``CublasHandlePool.cpp`` of
torch 2.9 to 2.13. ``CUBLAS_WORKSPACE_CONFIG`` changes both."""

CONTEXT_BYTES = 526 * MIB
"""Bytes of the CUDA context with torch's kernels and the libraries' handles, which no allocator
counts. Estimate for an 80 GB H100, not measured by this project. Published figures for torch range
from 0.3 to 0.6 GiB; a published message of an H100 that ran out (79.11 GiB, 1.69 free, 76.75
reserved) leaves 0.67 GiB. `UNCERTAINTY_SHARE` covers the rest."""

DRIVER_BYTES = 550 * MIB
"""Bytes of a card's memory that NVML counts and CUDA does not: 81,559 MiB by NVML are 79.1 GiB in
torch's messages of an H100, 24,564 MiB are 23.7 GiB of an RTX 4090."""

UNCERTAINTY_SHARE = 0.01
"""Uncertainty of driver and context memory, as a share of a card's memory: on cards of 16 to 80 GB,
CUDA reports 256 to 690 MiB less than NVML."""


def workspace_bytes(capability: str | None) -> int:
    """Bytes of one cuBLAS handle's workspace; the larger value for an unknown device."""
    is_larger = capability is None or capability.partition(".")[0] in ("9", "10", "12")
    return HOPPER_WORKSPACE if is_larger else WORKSPACE


def workspaces_bytes(spec: RunSpec, capability: str | None = None) -> int:
    """Bytes of all workspaces in a step, one per thread that multiplies; 0 on the CPU.

    The calling thread and autograd's thread each keep one until the process exits.
    """
    if spec.device == "cpu" or not (
        spec.workload == "transformer" or spec.attention_row.writes_scores
    ):
        return 0
    return (1 + spec.has_backward) * workspace_bytes(capability)
