"""Measures: values that studies compute from a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import NamedTuple

from sysbench.core.compare.rounds import rounds_counted
from sysbench.core.errors import SpecError
from sysbench.core.predict.sizes import Sizes
from sysbench.core.record.environment import device_name, instruction_set, node, sdpa_kernel
from sysbench.core.record.record import Allocation, KernelRow, Record
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.table import Cell
from sysbench.core.trace.attention_kernels import is_product, is_softmax
from sysbench.core.trace.questions import NamedTime, by_name


class Measure(NamedTuple):
    """A value of a record, and the block of the record that it needs, if any."""

    read: Callable[[Record], Cell]
    block: str = ""


def _timed_steps(record: Record) -> Cell:
    if record.timing is None:
        return None
    return (record.timing.steps or record.timing.step).n


def _backward_and_optimizer_ms(record: Record) -> Cell:
    phases = record.timing.phases if record.timing else {}
    if "backward" not in phases or "optimizer" not in phases:
        return None
    return phases["backward"].mean_ms + phases["optimizer"].mean_ms


def _rows(record: Record, phase: str = "") -> list[KernelRow]:
    if record.kernels is None:
        return []
    return [row for row in record.kernels.rows if phase in ("", row.phase)]


def _exclusive(rows: Sequence[KernelRow]) -> float:
    return fsum(row.exclusive_ns for row in rows)


def _quotient(part: float, total: float) -> float | None:
    return part / total if total else None


def _gemm_share(record: Record, phase: str = "") -> Cell:
    rows = _rows(record, phase)
    return _quotient(_exclusive([row for row in rows if row.category == "gemm"]), _exclusive(rows))


def _forward_time(record: Record, belongs: Callable[[KernelRow], bool]) -> Cell:
    rows = [row for row in _rows(record, "forward") if belongs(row)]
    return _exclusive(rows) if rows else None


def _of_longest(read: Callable[[NamedTime, Record], Cell]) -> Measure:
    """Read the kernel (operator) with the most time in forward, by name."""

    def measure(record: Record) -> Cell:
        forward = by_name(_rows(record, "forward"))
        return read(forward[0], record) if forward else None

    return Measure(measure, "kernels")


def _exposed_fraction(record: Record) -> Cell:
    block = record.distributed
    if block is None or block.exposed is None:
        return None
    return _quotient(block.exposed.mean_ms, block.step.mean_ms)


def _hidden_ms(record: Record) -> Cell:
    block = record.distributed
    if block is None or block.transfer is None:
        return None
    return block.communication.mean_ms - block.transfer.mean_ms


def _saved_in_blocks_fraction(record: Record) -> Cell:
    modules = record.memory.modules if record.memory else []
    saved = {module.module: module.activation_bytes for module in modules}
    if "blocks" not in saved or "model" not in saved:
        return None
    return _quotient(saved["blocks"], saved["model"])


def _residual_bytes(record: Record) -> Cell:
    try:
        spec = RunSpec(**record.spec)
    except (SpecError, TypeError):  # written by another version
        return None
    return spec.tokens_per_step * spec.d_model * Sizes(spec).width.residual


def _of_largest(read: Callable[[Allocation], Cell]) -> Measure:
    """Read the largest allocation alive at the peak."""

    def measure(record: Record) -> Cell:
        largest = record.memory.largest if record.memory else []
        return read(max(largest, key=lambda row: row.bytes)) if largest else None

    return Measure(measure, "memory")


MEASURES: dict[str, Measure] = {
    "hardware": Measure(lambda record: device_name(record.environment)),
    # The node of a cluster on which it ran, with the numbers of its GPUs there.
    "machine": Measure(lambda record: node(record.environment)),
    # Of the CPU, in use: libraries choose their workspace by it.
    "instruction_set": Measure(lambda record: instruction_set(record.environment)),
    # The kernel that torch chose for `attention = sdpa`.
    "sdpa_kernel": Measure(lambda record: sdpa_kernel(record.environment)),
    "status": Measure(lambda record: "OK" if record.status == "finished" else record.status),
    # Processes that the step time and its interval are of: with one the interval is inside it.
    "rounds": Measure(lambda record: rounds_counted(record.timing) or None, "timing"),
    # Steps of the step time, in all processes.
    "timed_steps": Measure(_timed_steps, "timing"),
    # Matrix products' part of the time in which kernels (operators) ran.
    "gemm_share": Measure(_gemm_share, "kernels"),
    "gemm_forward_share": Measure(lambda record: _gemm_share(record, "forward"), "kernels"),
    "longest_kernel": _of_longest(lambda kernel, _: kernel.name),
    # In one forward.
    "longest_kernel_calls": _of_longest(lambda kernel, _: kernel.calls),
    # Its part of the time in which kernels ran in forward.
    "longest_kernel_share": _of_longest(
        lambda kernel, record: _quotient(kernel.ns, _exclusive(_rows(record, "forward")))
    ),
    # Attention's softmax and its two matrix products, in one forward.
    "softmax_ns": Measure(lambda record: _forward_time(record, is_softmax), "kernels"),
    "attention_matmul_ns": Measure(lambda record: _forward_time(record, is_product), "kernels"),
    # Both timed directly, and added.
    "backward_and_optimizer_ms": Measure(_backward_and_optimizer_ms, "timing"),
    # Share of the step in which computing waited for communication.
    "exposed_fraction": Measure(_exposed_fraction, "distributed"),
    # Overlapped communication, on average per step and rank.
    "hidden_ms": Measure(_hidden_ms, "distributed"),
    # Part of all saved activations that the blocks hold.
    "saved_in_blocks_fraction": Measure(_saved_in_blocks_fraction, "memory"),
    # One tensor of the residual stream: batch x context x d_model x width.
    "residual_bytes": Measure(_residual_bytes),
    "largest_bytes": _of_largest(lambda allocation: allocation.bytes),
    "largest_category": _of_largest(lambda allocation: allocation.category),
    "largest_module": _of_largest(lambda allocation: allocation.module),
}
