"""Registry of precisions and attention kernels, one row each.

A row names dtypes and backends, which the worker looks up: this module imports no torch. To add a
precision or an attention kernel, add its name to the literal and its row to the tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sysbench.core.errors import SpecError

PrecisionName = Literal[
    "fp32", "tf32", "bf16", "fp16", "bf16-pure", "fp8", "fp8-tensorwise", "mxfp8", "nvfp4"
]
Recipe = Literal["", "rowwise", "tensorwise", "mxfp8", "nvfp4"]
AttentionName = Literal[
    "naive", "sdpa", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math", "flex", "own"
]
DtypeName = Literal["float32", "bfloat16", "float16"]
UNIT_ROUNDOFF: dict[DtypeName, float] = {
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}
"""Largest relative error of rounding to the nearest number of the format."""
Kernel = Literal["naive", "sdpa", "flex"]
"""Code paths of the model; ``sdpa`` is torch's fused call with any backend."""
Backend = Literal["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"]
"""Members of ``torch.nn.attention.SDPBackend``."""

DTYPE_BYTES: dict[DtypeName, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

PLAIN_NAMES = r"sgemm|ffma|simt"
TF32_NAMES = r"tf32|s1688"
BF16_NAMES = r"bf(?:loat)?16|nvjet_(?:sm\d+_)?ts"
FLOAT8_NAMES = r"e4m3|e5m2|float8|nvjet_(?:sm\d+_)?qq"
FLOAT4_NAMES = r"e2m1"
HALF_NAMES = r"b?f(?:p|loat)?16|half|hgemm|[hs](?:884|16816)|h1688|nvjet_(?:sm\d+_)?[ht]s"
"""Both 16-bit formats: ``BF16_NAMES`` are a part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of a step.

    Attributes:
        weights: Dtype of parameters, gradients and the optimizer's state.
        autocast: Dtype to which autocast lowers matrix products; None without autocast.
        tf32: Whether float32 matrix products may round their operands to TF32.
        recipe: Recipe of torchao with which linear layers multiply in 8 or 4 bits; empty without.
        keeps_weights: Whether the recipe converts weights once, for steps without gradients, and
            not at each product.
        capability: Compute capability from which a GPU has it.
        peak_key: Key of its dense peak in ``profiles/gpus.toml``.
        product_bits: Bits of an operand of a matrix product in the hardware.
        kernel_names: Case-insensitive pattern of the names of kernels that multiply in it. Patterns
            are tried from the narrowest format on, then in the order of the rows: ``s1688`` can be
            in the name of a half kernel, and ``ffma`` in that of a TF32 kernel.
    """

    name: PrecisionName
    weights: DtypeName = "float32"
    autocast: DtypeName | None = None
    tf32: bool = False
    cuda_only: bool = False
    recipe: Recipe = ""
    keeps_weights: bool = False
    capability: tuple[int, int] = (0, 0)
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

    def check_capability(self, capability: str | None, device: str = "") -> None:
        """Raise SpecError if a GPU of that compute capability, ``"8.0"``, does not have it."""
        if capability is None or tuple(map(int, capability.split("."))) >= self.capability:
            return
        raise SpecError(
            "precision",
            self.name,
            f"for GPUs of compute capability {'.'.join(map(str, self.capability))} or later "
            f"({'Blackwell' if self.keeps_weights else 'Ada, Hopper'}); {device or 'this one'} has "
            f"{capability}: take {self.autocast_only}",
        )

    @property
    def autocast_only(self) -> PrecisionName:
        """The precision of the layers that the recipe leaves as they are."""
        wanted = self.weights, self.autocast, self.tf32, ""
        return next(
            row.name
            for row in PRECISIONS
            if (row.weights, row.autocast, row.tf32, row.recipe) == wanted
        )

    @property
    def format_name(self) -> str:
        """Format in which converted layers multiply."""
        return self.name if self.keeps_weights else "float8"

    @property
    def weight_bytes(self) -> int:
        return DTYPE_BYTES[self.weights]

    @property
    def compute_bytes(self) -> int:
        return DTYPE_BYTES[self.compute]


FLOAT8_RECIPES: tuple[tuple[PrecisionName, Recipe], ...] = (
    ("fp8", "rowwise"),
    ("fp8-tensorwise", "tensorwise"),
)
BLOCK_FORMATS: tuple[tuple[Literal["mxfp8", "nvfp4"], str, int, str], ...] = (
    ("mxfp8", "fp8", 8, FLOAT8_NAMES),
    ("nvfp4", "fp4", 4, FLOAT4_NAMES),
)
PRODUCT_MULTIPLE = 16
"""Divisor of every size of a product in 8 bits, by ``torch._scaled_mm``."""
BLOCK_MULTIPLE = 32
"""Divisor of a layer's inputs in mxfp8, whose blocks they are, and in nvfp4, two to a byte."""

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
    *(
        Precision(
            name=name,
            autocast="bfloat16",
            cuda_only=True,
            recipe=recipe,
            capability=(8, 9),
            peak_key="fp8",
            product_bits=8,
            kernel_names=FLOAT8_NAMES,
        )
        for name, recipe in FLOAT8_RECIPES
    ),
    *(
        Precision(
            name=name,
            weights="bfloat16",
            cuda_only=True,
            recipe=name,
            keeps_weights=True,
            capability=(10, 0),
            peak_key=peak_key,
            product_bits=bits,
            kernel_names=names,
        )
        for name, peak_key, bits, names in BLOCK_FORMATS
    ),
)
"""In the order of forms and messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Properties of an attention kernel.

    Attributes:
        kernel: Code path of the model.
        backend: The only backend allowed to torch's fused call; None lets torch choose.
        scores: What writes the matrix of scores to memory: the model's operators, torch's, or
            ``none`` if a fused kernel keeps it on the chip.
        stand_in: Eager kernel of every device on the same operands: for a dry run, or for a step
            whose only purpose is to import torch's modules.
        compiles: Whether the first step compiles it, even in an eager model.
        cpu_backward: Whether it has a backward pass on the CPU.
        cuda_dtypes: Dtypes that it supports on CUDA.
        is_of_model: Whether it is the attention in a user's model, which no key changes.
        has_ring: Whether ranks that share a sample's tokens can attend with it.
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
    has_ring: bool = False

    @property
    def writes_scores(self) -> bool:
        """Whether a (batch, heads, context, context) matrix is in memory."""
        return self.scores != "none"


ATTENTIONS: tuple[Attention, ...] = (
    Attention(name="naive", kernel="naive", scores="model", stand_in="naive"),
    Attention(name="sdpa", has_ring=True),
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
"""In the order of forms and messages."""

OWN_ATTENTION: AttentionName = next(row.name for row in ATTENTIONS if row.is_of_model)
"""Default of the user's models."""

_PRECISIONS: dict[str, Precision] = {row.name: row for row in PRECISIONS}
_ATTENTIONS: dict[str, Attention] = {row.name: row for row in ATTENTIONS}


def precision_named(name: str) -> Precision:
    """Return the row of a precision, or raise SpecError."""
    if name not in _PRECISIONS:
        raise SpecError("precision", name, f"one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[name]


def attention_named(name: str) -> Attention:
    """Return the row of an attention kernel, or raise SpecError."""
    if name not in _ATTENTIONS:
        raise SpecError("attention", name, f"one of {', '.join(_ATTENTIONS)}")
    return _ATTENTIONS[name]


def without_autocast(precision: Precision) -> Precision:
    """Return the precision for all devices with the same weights and no autocast."""
    return next(
        row
        for row in PRECISIONS
        if row.weights == precision.weights and row.autocast is None and not row.cuda_only
    )
