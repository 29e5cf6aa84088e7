"""Measures: values that studies compute from a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from sysbench.core.compare.rounds import rounds_counted
from sysbench.core.errors import SpecError
from sysbench.core.predict.sizes import Sizes
from sysbench.core.record.environment import device_name
from sysbench.core.record.environment import instruction_set as instructions_of
from sysbench.core.record.environment import node as node_of
from sysbench.core.record.environment import sdpa_kernel as sdpa_kernel_of
from sysbench.core.record.record import Allocation, KernelRow, Record
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.table import Cell
from sysbench.core.trace.attention_kernels import is_product, is_softmax
from sysbench.core.trace.questions import by_name

Measure = Callable[[Record], Cell]


def hardware(record: Record) -> Cell:
    """Name that the device reports."""
    return device_name(record.environment)


def instruction_set(record: Record) -> Cell:
    """The CPU's instruction set in use: libraries choose their workspace by it."""
    return instructions_of(record.environment)


def sdpa_kernel(record: Record) -> Cell:
    """The kernel that torch chose for ``attention = sdpa``."""
    return sdpa_kernel_of(record.environment)


def machine(record: Record) -> Cell:
    """The node of a cluster on which it ran, with the numbers of its GPUs there."""
    return node_of(record.environment)


def status(record: Record) -> Cell:
    """Outcome of the run, ``OK`` if it finished."""
    return "OK" if record.status == "finished" else record.status


def rounds(record: Record) -> Cell:
    """Processes that the step time and its interval are of: with one the interval is inside it."""
    return rounds_counted(record.timing) or None


def timed_steps(record: Record) -> Cell:
    """Steps of the step time, in all processes."""
    if record.timing is None:
        return None
    return (record.timing.steps or record.timing.step).n


def gemm_share(record: Record) -> Cell:
    """Matrix multiplication's part of the time in which kernels (operators) ran."""
    rows = _rows(record)
    gemms = [row for row in rows if row.category == "gemm"]
    return _quotient(_exclusive(gemms), _exclusive(rows))


def gemm_forward_share(record: Record) -> Cell:
    """The same in forward alone."""
    rows = _rows(record, "forward")
    gemms = [row for row in rows if row.category == "gemm"]
    return _quotient(_exclusive(gemms), _exclusive(rows))


def longest_kernel(record: Record) -> Cell:
    """The kernel (operator) with the most time in forward, by name."""
    forward = by_name(_rows(record, "forward"))
    return forward[0].name if forward else None


def longest_kernel_calls(record: Record) -> Cell:
    """Calls of that kernel in one forward."""
    forward = by_name(_rows(record, "forward"))
    return forward[0].calls if forward else None


def longest_kernel_share(record: Record) -> Cell:
    """Its part of the time in which kernels ran in forward."""
    rows = _rows(record, "forward")
    forward = by_name(rows)
    return _quotient(forward[0].ns, _exclusive(rows)) if forward else None


def backward_and_optimizer_ms(record: Record) -> Cell:
    """Backward and optimizer, both timed directly, and added."""
    phases = record.timing.phases if record.timing else {}
    if "backward" not in phases or "optimizer" not in phases:
        return None
    return phases["backward"].mean_ms + phases["optimizer"].mean_ms


def exposed_fraction(record: Record) -> Cell:
    """Share of the step in which computing waited for communication."""
    block = record.distributed
    if block is None or block.exposed is None:
        return None
    return _quotient(block.exposed.mean_ms, block.step.mean_ms)


def hidden_ms(record: Record) -> Cell:
    """Overlapped communication, on average per step and rank."""
    block = record.distributed
    if block is None or block.transfer is None:
        return None
    return block.communication.mean_ms - block.transfer.mean_ms


def saved_in_blocks_fraction(record: Record) -> Cell:
    """Part of all saved activations that the blocks hold."""
    modules = record.memory.modules if record.memory else []
    saved = {module.module: module.activation_bytes for module in modules}
    if "blocks" not in saved or "model" not in saved:
        return None
    return _quotient(saved["blocks"], saved["model"])


def softmax_ns(record: Record) -> Cell:
    """Attention's softmax in one forward."""
    return _time_of(record, is_softmax)


def attention_matmul_ns(record: Record) -> Cell:
    """Attention's two matrix products in one forward."""
    return _time_of(record, is_product)


def residual_bytes(record: Record) -> Cell:
    """One tensor of the residual stream: batch x context x d_model x width."""
    try:
        spec = RunSpec(**record.spec)
    except (SpecError, TypeError):  # written by another version
        return None
    return spec.tokens_per_step * spec.d_model * Sizes(spec).width.residual


def largest_bytes(record: Record) -> Cell:
    """The largest allocation alive at the peak."""
    largest = _largest(record)
    return largest.bytes if largest else None


def largest_category(record: Record) -> Cell:
    """Category of the largest allocation: activations, gradients, …"""
    largest = _largest(record)
    return largest.category if largest else None


def largest_module(record: Record) -> Cell:
    """The module that the largest allocation was made in."""
    largest = _largest(record)
    return largest.module if largest else None


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        *(hardware, machine, instruction_set, sdpa_kernel, status, rounds, timed_steps),
        *(
            gemm_share,
            gemm_forward_share,
            longest_kernel,
            longest_kernel_calls,
            longest_kernel_share,
        ),
        *(softmax_ns, attention_matmul_ns, backward_and_optimizer_ms),
        *(exposed_fraction, hidden_ms, saved_in_blocks_fraction),
        *(residual_bytes, largest_bytes, largest_category, largest_module),
    )
}


def _rows(record: Record, phase: str = "") -> list[KernelRow]:
    if record.kernels is None:
        return []
    return [row for row in record.kernels.rows if phase in ("", row.phase)]


def _exclusive(rows: Sequence[KernelRow]) -> float:
    return fsum(row.exclusive_ns for row in rows)


def _quotient(part: float, total: float) -> float | None:
    return part / total if total else None


def _time_of(record: Record, belongs: Callable[[KernelRow], bool]) -> Cell:
    rows = [row for row in _rows(record, "forward") if belongs(row)]
    return _exclusive(rows) if rows else None


def _largest(record: Record) -> Allocation | None:
    if record.memory is None or not record.memory.largest:
        return None
    return max(record.memory.largest, key=lambda allocation: allocation.bytes)
