"""Predict parameters, FLOPs and peak memory of a spec by formulas: no torch, about 1 ms.

FLOPs count matrix products only, two per multiply-add. Memory is the peak of tensors in a steady
eager step, with gradients freed and optimizer state allocated, plus cuBLAS workspaces on CUDA. Not
included: other memory of libraries (the CUDA context, oneDNN's packed operands) and the savings of
torch.compile. Letters of the formulas: B batch, T context, V vocab, d d_model, f d_ff, L layers, h
heads.

The replayed step is that of `sysbench.core.worker.workloads`, run eagerly, as torch 2.13 executes
it. Every tensor that can set a peak is counted; small statistics, scratch space inside kernels and
the allocator's rounding are not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import Final

import msgspec

from sysbench.core.formatting import format_bytes, format_count
from sysbench.core.machine.devices import has_own_products
from sysbench.core.predict.backward import GRADIENTS, replay_backward, softmax_back
from sysbench.core.predict.forward import (
    ACTIVATIONS,
    LOGITS,
    Tape,
    TapeMoment,
    replay_forward,
    replay_loss,
    softmax_of_scores,
)
from sysbench.core.predict.sizes import Sizes, workspaces_bytes
from sysbench.core.record.memory import KEPT, WORKSPACES
from sysbench.core.record.record import LedgerRow
from sysbench.core.spec.spec import RunSpec


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of a replayed step: the peak of each phase, and the bytes that the graph holds after
    forward and loss, without weights."""

    peaks: dict[str, TapeMoment]
    saved_bytes: int

    @property
    def peak(self) -> TapeMoment:
        return max(self.peaks.values(), key=lambda moment: moment.total)


def step_memory(spec: RunSpec) -> StepMemory:
    """Replay one steady step: optimizer state allocated, gradients freed in the step before."""
    sizes = Sizes(spec)
    tape = Tape(step_resident_bytes(sizes), graph=spec.keeps_graph)
    replay_forward(tape, sizes)
    saved = tape.live[ACTIVATIONS]
    if spec.has_backward:
        replay_loss(tape, sizes)
        saved += tape.live[LOGITS]
        replay_backward(tape, sizes)
    if spec.step == "train":
        tape.enter("optimizer", spec.optimizer)
        tape.spike(_optimizer_scratch(sizes))
    return StepMemory(tape.peaks, saved)


def step_resident_bytes(sizes: Sizes) -> dict[str, int]:
    """Bytes that are live between steps, by kind."""
    spec, weight = sizes.spec, sizes.width.weight
    parameters = sizes.size.parameters * weight
    has_state = spec.step == "train" and spec.optimizer != "sgd"
    # Two rotary tables; a mask of one byte an element; tokens and targets of 8 bytes each.
    has_mask = spec.attention_row.scores == "model" and spec.step != "decode"
    mask = spec.context**2 if has_mask else 0
    return {
        "parameters": parameters,
        "optimizer state": 2 * parameters if has_state else 0,
        "buffers": 2 * spec.context * sizes.size.head_dimension * weight + mask,
        CACHE: sizes.size.layers * sizes.cache,
        "inputs": (2 - spec.has_cache) * 8 * spec.tokens_per_forward,
    }


def _optimizer_scratch(sizes: Sizes) -> int:
    """Temporary bytes of AdamW.

    foreach computes the roots of all second moments at once. The loop holds a root, its quotient
    and the quotient of the parameter before it.
    """
    optimizer, weight = sizes.spec.optimizer, sizes.width.weight
    if optimizer == "adamw-foreach":
        return sizes.size.parameters * weight
    if optimizer == "adamw-loop":
        return max(2 * sizes.table, 3 * sizes.wide, 3 * sizes.square) * weight
    return 0


def attention_memory(spec: RunSpec) -> StepMemory:
    """Replay one step of bare attention.

    Complete if the scores are materialised; other kernels count without scratch space and casts.
    """
    sizes = Sizes(spec)
    operand = spec.tokens_per_forward * spec.d_model * sizes.width.weight
    naive = spec.attention_row.scores == "model"
    resident = {
        "inputs": 3 * operand + (sizes.x if spec.has_backward else 0),
        "buffers": spec.context**2 if naive and spec.is_causal else 0,
    }
    tape = Tape(resident, graph=spec.keeps_graph)
    tape.enter("forward", "attention")
    (_naive if naive else _fused)(tape, sizes)
    saved = tape.live[ACTIVATIONS]
    if spec.has_backward:
        tape.enter("backward", "attention")
        if naive:
            _naive_back(tape, sizes, operand)
        else:
            tape.add(GRADIENTS, 3 * operand)
    return StepMemory(tape.peaks, saved)


def _naive(tape: Tape, sizes: Sizes) -> None:
    _lower(tape, sizes, "q cast", "k cast")
    tape.spike(2 * sizes.scores)
    tape.free("q cast", "k cast")
    softmax_of_scores(tape, sizes)
    _lower(tape, sizes, "v cast")
    tape.new("mixed", sizes.x, LOGITS)
    tape.free("quotients", "quotients cast", "exponentials", "row sums", "v cast")


def _lower(tape: Tape, sizes: Sizes, *names: str) -> None:
    if sizes.width.autocast:
        for name in names:
            tape.new(name, sizes.x)
        tape.save(*names)


def _naive_back(tape: Tape, sizes: Sizes, gradient: int) -> None:
    cast = sizes.scores_soft != sizes.scores
    casts = ("q cast", "k cast", "v cast") if sizes.width.autocast else ()
    tape.new("g quotients", sizes.scores)
    tape.add(GRADIENTS, gradient)  # of v
    tape.release("quotients cast" if cast else "quotients", *casts[2:])
    softmax_back(tape, sizes)
    tape.add(GRADIENTS, 2 * gradient)  # of q and k
    tape.free("g scores")
    tape.release(*casts[:2])


def _fused(tape: Tape, sizes: Sizes) -> None:
    tape.new("mixed", sizes.x)
    tape.new("row sums", sizes.rows_float)
    tape.save("mixed", "row sums")


CACHE = "kv cache"
GATHERED: Final = "gathered parameters"
COMMUNICATION: Final = "communication buffers"
RECEIVED = "received tokens"
ROWS = (
    "parameters",
    "gradients",
    "optimizer state",
    "buffers",
    "other weights",
    CACHE,
    "inputs",
    KEPT,
    "activations",
    "autocast weight copies",
    "logits and loss",
    "temporaries",
    WORKSPACES,
    GATHERED,
    COMMUNICATION,
    RECEIVED,
)
"""Names of the ledger's rows, in order; rows of zero bytes are left out."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted cost of one steady step.

    Attributes:
        forward_flops: Attention counted in full, as dense kernels compute it.
        causal_forward_flops: The same without attention's masked half.
        backward_flops: Twice the forward's; 0 without backward.
        step_flops: Forward and backward. Optimizers have no matrix products.
        saved_activation_bytes: Bytes that the graph keeps after forward and loss, storages counted
            once, without weights and their copies; 0 without a graph.
        ledger: Named amounts that add up to ``peak_bytes``.
        peak_phase: Phase of the peak, as the workload names it.
        peak_place: Place in the phase: a block, the loss, the optimizer's name.
        formulas: Name of a quantity to its formula, for display.
        limits: Where a dry run is not exact, a sentence each.
    """

    parameters: int = 0
    parameter_bytes: int = 0
    forward_flops: int = 0
    causal_forward_flops: int = 0
    backward_flops: int = 0
    step_flops: int = 0
    saved_activation_bytes: int = 0
    ledger: list[LedgerRow] = []
    peak_bytes: int = 0
    peak_phase: str = ""
    peak_place: str = ""
    method: str = "closed form"
    formulas: dict[str, str] = {}
    limits: list[str] = []

    @property
    def causal_step_flops(self) -> int:
        """``step_flops`` without attention's masked half: backward is twice the forward."""
        return self.causal_forward_flops * (3 if self.backward_flops else 1)


def predict(spec: RunSpec, capability: str | None = None) -> Prediction:
    """Predict the cost of one steady eager step.

    The CPU and CUDA keep different tensors (see `sysbench.core.predict.sizes`); a device of
    ``auto`` counts as CUDA, so resolve it first. A workload without a model has no parameters and
    no matrix products, and its memory is not predicted.

    Args:
        capability: The device's compute capability, such as ``9.0``, which determines workspaces;
            None if unknown.
    """
    if spec.workload not in ("transformer", "attention"):
        return Prediction(method=f"nothing to predict: {spec.workload} has no model")
    is_bare = spec.workload == "attention"
    memory = attention_memory(spec) if is_bare else step_memory(spec)
    sizes, workspaces = Sizes(spec), workspaces_bytes(spec, capability)
    layers, parameters = sizes.size.layers, 0 if is_bare else sizes.size.parameters
    blocks = 0 if is_bare else layers * (4 * sizes.square + 3 * sizes.wide)
    head = 0 if is_bare else sizes.logits // sizes.width.compute * sizes.size.d_model
    attention = 4 * spec.tokens_per_step * spec.context * spec.d_model * layers
    forward = 2 * (spec.tokens_per_step * blocks + spec.accumulation * head) + attention
    backward = 2 * forward if spec.has_backward else 0
    has_masked_half = spec.is_causal and spec.step != "decode"
    peak, ledger = memory.peak, _ledger(memory, workspaces)
    peak_bytes = peak.total + workspaces
    names = " + ".join(row.name for row in ledger)
    formulas = (
        {"forward FLOPs": f"4BT²d = {format_count(forward).strip()}"}
        if is_bare
        else _formulas(sizes, memory, forward, backward)
    )
    return Prediction(
        parameters=parameters,
        parameter_bytes=parameters * sizes.width.weight,
        forward_flops=forward,
        causal_forward_flops=forward - attention // 2 if has_masked_half else forward,
        backward_flops=backward,
        step_flops=forward + backward,
        saved_activation_bytes=memory.saved_bytes,
        ledger=ledger,
        peak_bytes=peak_bytes,
        peak_phase=peak.phase,
        peak_place=peak.place,
        formulas=formulas
        | {"peak": f"{names} = {format_bytes(peak_bytes)}, in {peak.phase} ({peak.place})"},
    )


def _ledger(memory: StepMemory, workspaces: int) -> list[LedgerRow]:
    live = memory.peak.live + Counter({WORKSPACES: workspaces})
    return [LedgerRow(name, live[name]) for name in ROWS if live[name]]


def why_not_predicted(spec: RunSpec) -> str | None:
    """The reason why `predict` does not cover the spec's memory, or None."""
    if spec.is_own:
        return "the closed form covers built-in models only; `--exact` dry-runs other models"
    if spec.workload not in ("transformer", "attention"):
        return f"the closed form covers models, not {spec.workload}"
    if spec.workload == "attention" and spec.attention_row.scores != "model":
        return "a fused attention kernel may need as much scratch memory as its tensors take"
    if spec.compiles:
        why = "torch.compile changes what is saved and fused; the closed form covers eager code"
        return why if spec.compile == "off" else f"{why}; `--exact` plays the compiler's graphs"
    if spec.precision_row.recipe:
        return f"the closed form has no {spec.precision} layers; `--exact` dry-runs them"
    if spec.accumulation > 1:
        return "the closed form covers one micro-batch a step; `--exact` dry-runs several"
    if spec.parallel != "none":
        return "the closed form covers one device; ranks also hold buckets and shards"
    return None


def why_no_workspace(spec: RunSpec, instructions: str | None) -> str | None:
    """The reason why a peak on this CPU can exceed `predict`, or None.

    The excess depends on shapes, layouts and the version of oneDNN: from zero to more than a matrix
    of weights. Measurements have it in the row ``library workspace``.
    """
    dtype = spec.precision_row.compute
    if spec.device != "cpu" or not has_own_products(instructions, dtype):
        return None
    return f"oneDNN's memory within {spec.precision} products ({instructions}) is not predicted"


def _formulas(sizes: Sizes, memory: StepMemory, forward: int, backward: int) -> dict[str, str]:
    spec, size, width = sizes.spec, sizes.size, sizes.width
    texts = {
        "parameters": f"L(4d² + 3df + 2d) + d + 2Vd = {size.parameters:,}",
        "forward FLOPs": f"{_forward_formula(spec)} = {format_count(forward).strip()}",
    }
    if spec.has_cache:
        texts["kv cache"] = (
            f"2BTdL × {width.compute} bytes = {format_bytes(size.layers * sizes.cache)}"
        )
    if backward:
        texts["backward FLOPs"] = f"2 × forward = {format_count(backward).strip()}"
    if memory.saved_bytes:
        saved = format_bytes(memory.saved_bytes)
        texts["saved for backward"] = f"about {_kept_formula(sizes)} bytes and the loss's: {saved}"
    if spec.step == "train":
        copies = 1 if spec.optimizer == "sgd" else 3
        texts["weights and state"] = f"{copies * width.weight} bytes per parameter"
    return texts


def _forward_formula(spec: RunSpec) -> str:
    match spec.step:
        case "prefill":
            return "2B[TL(4d² + 3df) + Vd] + 4BT²dL"
        case "decode":
            return "2B[L(4d² + 3df) + Vd] + 4BTdL"
    return "2BT[L(4d² + 3df) + Vd] + 4BT²dL"


def _kept_formula(sizes: Sizes) -> str:
    """Bytes that the blocks keep; for a recomputed segment only its input."""
    checkpoint = sizes.spec.checkpoint
    if not checkpoint:
        return f"L({_block_formula(sizes)})"
    return f"{ceil(sizes.size.layers / checkpoint)} segments' {sizes.width.residual}BTd"


def _block_formula(sizes: Sizes) -> str:
    """Bytes that a block keeps for backward, without small statistics.

    Of d: two norms' inputs and results, and on the CPU their normalised inputs in float32; q, k, v
    and the input of the output projection. Of f: the feed-forward's four tensors. Of T², if the
    scores are materialised: exponentials and quotients; torch's own math kernel keeps one.
    """
    width, scores = sizes.width, sizes.spec.attention_row.scores
    norms = width.residual + width.compute if width.fused_norm else 4 + 4 + width.compute
    heads = 4 if scores == "torch" else width.compute
    text = f"BT({2 * norms + 3 * heads + width.compute}d + {4 * width.compute}f)"
    if scores == "model":
        return f"{text} + {2 * width.softmax if sizes.scores == sizes.scores_soft else 6}BhT²"
    return f"{text} + 4BhT²" if scores == "torch" else text
