"""Registry of precisions and of attention kernels: everything that differs by name is in a row.

No torch: a row names dtypes and backends, and the worker looks them up. To add a precision or an
attention kernel, add its name to the literal and its row to the tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sysbench.core.errors import SpecError

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16", "bf16-pure"]
AttentionName = Literal[
    "naive", "sdpa", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math", "flex", "own"
]
DtypeName = Literal["float32", "bfloat16", "float16"]
"""Attributes of the torch module."""
UNIT_ROUNDOFF: dict[DtypeName, float] = {
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}
"""Largest relative error of rounding to the nearest number of the format."""
Kernel = Literal["naive", "sdpa", "flex"]
"""Code paths of the model; ``sdpa`` is torch's fused call, whichever backend answers it."""
Backend = Literal["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"]
"""Members of ``torch.nn.attention.SDPBackend``."""

DTYPE_BYTES: dict[DtypeName, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

PLAIN_NAMES = r"sgemm|ffma|simt"
TF32_NAMES = r"tf32|s1688"
BF16_NAMES = r"bf(?:loat)?16|nvjet_(?:sm\d+_)?ts"
HALF_NAMES = r"b?f(?:p|loat)?16|half|hgemm|[hs](?:884|16816)|h1688|nvjet_(?:sm\d+_)?[ht]s"
"""Either kind of half: ``BF16_NAMES`` are a part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of a step.

    Attributes:
        name: Value of the spec's key.
        weights: Dtype of parameters, gradients and the optimizer's state.
        autocast: Dtype to which autocast lowers matrix products; None without autocast.
        tf32: Whether float32 matrix products may round their operands to TF32.
        cuda_only: Whether the CPU refuses it.
        peak_key: Key of its dense peak in ``profiles/gpus.toml``.
        product_bits: Bits of an operand of a matrix product, as the hardware takes it.
        kernel_names: Pattern, without case, of the names of kernels that multiply in it.
            Names are asked for the narrowest format first, then in the order of the rows:
            ``s1688`` is of halves where they are named, and ``ffma`` stands in the names of
            some TF32 kernels.
    """

    name: PrecisionName
    weights: DtypeName = "float32"
    autocast: DtypeName | None = None
    tf32: bool = False
    cuda_only: bool = False
    peak_key: str
    product_bits: int
    kernel_names: str

    @property
    def compute(self) -> DtypeName:
        """Dtype of the inputs and results of matrix products."""
        return self.autocast or self.weights

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding an operand of a matrix product."""
        # TF32 has the significand of float16.
        return UNIT_ROUNDOFF["float16" if self.tf32 else self.compute]

    @property
    def weight_bytes(self) -> int:
        """Bytes of an element of a weight, its gradient or its optimizer state."""
        return DTYPE_BYTES[self.weights]

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element that goes into or comes out of a matrix product."""
        return DTYPE_BYTES[self.compute]


PRECISIONS: tuple[Precision, ...] = (
    Precision(name="fp32", peak_key="fp32", product_bits=32, kernel_names=PLAIN_NAMES),
    Precision(
        name="tf32",
        tf32=True,
        cuda_only=True,
        peak_key="tf32",
        product_bits=19,
        kernel_names=TF32_NAMES,
    ),
    Precision(
        name="bf16",
        autocast="bfloat16",
        peak_key="bf16",
        product_bits=16,
        kernel_names=BF16_NAMES,
    ),
    Precision(
        name="fp16",
        autocast="float16",
        peak_key="fp16",
        product_bits=16,
        kernel_names=HALF_NAMES,
    ),
    Precision(
        name="bf16-pure",
        weights="bfloat16",
        peak_key="bf16",
        product_bits=16,
        kernel_names=BF16_NAMES,
    ),
)
"""In the order in which forms and messages list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Properties of an attention kernel.

    Attributes:
        name: Value of the spec's key.
        kernel: Code path of the model.
        backend: The only backend allowed to torch's fused call; None leaves torch the choice.
        scores: Writer of the matrix of scores in memory: the model's operators, torch's, or
            ``none`` where a fused kernel keeps it on the chip.
        stand_in: Eager kernel of every device on the same operands: for a step on tensors
            without data, or one whose only purpose is to import torch's modules.
        compiles: Whether the first step compiles it, even in an eager model.
        cuda_only: Whether the CPU refuses it.
        cpu_backward: Whether it has a backward pass on the CPU.
        cuda_dtypes: Dtypes that it takes on CUDA.
        is_of_model: It is what the user's model has in its code, and nothing sets it.
    """

    name: AttentionName
    kernel: Kernel = "sdpa"
    backend: Backend | None = None
    scores: Literal["model", "torch", "none"] = "none"
    stand_in: AttentionName = "sdpa"
    compiles: bool = False
    cuda_only: bool = False
    cpu_backward: bool = True
    cuda_dtypes: tuple[DtypeName, ...] = ("float32", "bfloat16", "float16")
    is_of_model: bool = False

    @property
    def writes_scores(self) -> bool:
        """True if a (batch, heads, context, context) matrix is in memory."""
        return self.scores != "none"


ATTENTIONS: tuple[Attention, ...] = (
    Attention(name="naive", kernel="naive", scores="model", stand_in="naive"),
    Attention(name="sdpa"),
    Attention(name="sdpa-flash", backend="FLASH_ATTENTION", cuda_dtypes=("bfloat16", "float16")),
    Attention(name="sdpa-efficient", backend="EFFICIENT_ATTENTION", cuda_only=True),
    Attention(
        name="sdpa-cudnn",
        backend="CUDNN_ATTENTION",
        cuda_only=True,
        cuda_dtypes=("bfloat16", "float16"),
    ),
    Attention(name="sdpa-math", backend="MATH", scores="torch"),
    Attention(name="flex", kernel="flex", compiles=True, cpu_backward=False),
    Attention(name="own", is_of_model=True),
)
"""In the order in which forms and messages list them."""

OWN_ATTENTION: AttentionName = next(row.name for row in ATTENTIONS if row.is_of_model)
"""Default of the user's models."""

_PRECISIONS: dict[str, Precision] = {row.name: row for row in PRECISIONS}
_ATTENTIONS: dict[str, Attention] = {row.name: row for row in ATTENTIONS}


def precision_named(name: str) -> Precision:
    """The row of that precision.

    Raises:
        SpecError: No such precision.
    """
    if name not in _PRECISIONS:
        raise SpecError("precision", name, f"one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[name]


def attention_named(name: str) -> Attention:
    """The row of that attention kernel.

    Raises:
        SpecError: No such kernel.
    """
    if name not in _ATTENTIONS:
        raise SpecError("attention", name, f"one of {', '.join(_ATTENTIONS)}")
    return _ATTENTIONS[name]


def without_autocast(precision: Precision) -> Precision:
    """The precision of every device that keeps weights as this one does and casts nothing."""
    return next(
        row
        for row in PRECISIONS
        if row.weights == precision.weights and row.autocast is None and not row.cuda_only
    )
