"""Rules on memory: predicted against measured peak, unexpected residents, limits."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sysbench.core.findings.rule_rules import Rule
from sysbench.core.formatting import format_bytes, percent, signed_percent
from sysbench.core.memory.predicted import COPIES, predicted_amount
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.record.environment import compute_capability
from sysbench.core.record.memory import RESIDUAL
from sysbench.core.record.record import Finding, Memory, Record
from sysbench.core.spec.spec import RunSpec

PREDICTION_LIMIT = 0.05
LEFTOVER_LIMIT = 0.01
FIRST_STEP_LIMIT = 0.05
CARD_LIMIT = 0.95
RESIDUAL_LIMIT = 0.01
UNSPLIT_UNKNOWN = "ledger.blocks larger than asked for"
SPILL_RATIO = 6.0
"""Backward over forward; twice the work takes about twice the time if all is on the card."""


def prediction_missed(record: Record) -> Finding | None:
    """The predicted peak differs from the measured one by more than the limit."""
    memory = record.memory
    if memory is None or not memory.predicted_peak_bytes:
        return None
    error, of_tensors = memory.prediction_error, memory.comparable_prediction_error
    if error is None or abs(error) <= PREDICTION_LIMIT:
        return None
    if of_tensors is not None and abs(of_tensors) <= PREDICTION_LIMIT:
        if not memory.library_workspace_bytes:
            return None
        return _only_library_workspace(memory, error, of_tensors)
    return Finding(
        rule="prediction-missed",
        severity="note",
        verdict=f"The peak was predicted {signed_percent(error)} off.",
        why=f"Predicted {format_bytes(memory.predicted_peak_bytes)}, measured "
        f"{format_bytes(memory.peak_allocated_bytes)} in {memory.peak_phase}.",
        next="Compare the two ledgers on the Memory tab.",
        numbers={"error": error},
    )


def _only_library_workspace(memory: Memory, error: float, of_tensors: float) -> Finding:
    """The prediction is right of the tensors, and misses the peak by what came on top of them."""
    added = format_bytes(memory.library_workspace_bytes)
    return Finding(
        rule="prediction-missed",
        severity="note",
        verdict=f"Library workspace adds {added} to the peak, which no prediction has.",
        why=f"Tensors took {format_bytes(memory.tensor_peak_bytes)}, and the prediction is "
        f"{signed_percent(of_tensors)} off that; the CPU's library took the rest within a product.",
        next="Not a fault: leave room for it. It goes by the CPU's instructions, see Environment.",
        numbers={
            "error": error,
            "tensor_error": of_tensors,
            "library_workspace_bytes": memory.library_workspace_bytes,
        },
    )


def ledger_does_not_close(record: Record) -> Finding | None:
    """The allocator counted other bytes than the recorded allocations explain, at any instant.

    Less than they add up to is impossible; more is bytes that no row has.
    """
    memory = record.memory
    if memory is None:
        return None
    shares = {
        name: predicted_amount(rows, RESIDUAL) / (sum(row.bytes for row in rows) or 1)
        for name, rows in memory.columns.items()
    }
    wrong = {name: share for name, share in shares.items() if share < 0 or share > RESIDUAL_LIMIT}
    if not wrong:
        return None
    worst = max(wrong, key=lambda name: abs(wrong[name]))
    left = predicted_amount(memory.columns[worst], RESIDUAL)
    unsplit = memory.missing.get(UNSPLIT_UNKNOWN)
    return Finding(
        rule="ledger-does-not-close",
        severity="note" if unsplit and min(wrong.values()) > 0 else "warning",
        verdict=f"The memory ledger does not close: {signed_percent(wrong[worst])} at {worst}.",
        why=f"The allocator's counter has {format_bytes(abs(left))} "
        f"{'more' if left > 0 else 'less'} than the recorded allocations"
        + (f"; blocks larger than asked for are among them: {unsplit}." if unsplit else "."),
        next="Trust the peak, which is the counter's; do not publish the ledger's rows.",
        numbers={"residual_bytes": left, "share": wrong[worst], "columns": len(wrong)},
    )


def previous_output_alive(record: Record) -> Finding | None:
    """A step began with the output, or the graph, of the one before."""
    memory = record.memory
    if memory is None or "after warm-up" not in memory.columns:
        return None
    before = memory.columns["after warm-up"]
    leftover = predicted_amount(before, "activations") + predicted_amount(before, "outputs")
    if leftover <= LEFTOVER_LIMIT * memory.peak_allocated_bytes:
        return None
    return Finding(
        rule="previous-output-alive",
        severity="warning",
        verdict=f"Each step begins with {format_bytes(leftover)} of the step before.",
        why="Its output was not dropped, and an output holds its whole graph: the peak has two "
        "graphs, P + 2A.",
        next="Delete the output, or let its name go out of scope, before the next forward.",
        numbers={"left_bytes": leftover, "peak_bytes": memory.peak_allocated_bytes},
    )


def forward_in_grad_mode(record: Record) -> Finding | None:
    """A forward without a backward kept a graph."""
    memory = record.memory
    if memory is None or record.spec["step"] not in ("inference", "forward"):
        return None
    saved = predicted_amount(memory.ledger, "activations")
    if saved <= LEFTOVER_LIMIT * memory.peak_allocated_bytes:
        return None
    return Finding(
        rule="forward-in-grad-mode",
        severity="note",
        verdict=f"{format_bytes(saved)} of this forward's peak is a graph that nobody used.",
        why="It ran in grad mode: the peak is P + A where a forward without a graph has P.",
        next="Take step=inference for a forward's own memory; say which of the two you publish.",
        numbers={"saved_bytes": saved, "peak_bytes": memory.peak_allocated_bytes},
    )


def state_in_forward(record: Record) -> Finding | None:
    """A forward was profiled with optimizer state or gradients resident."""
    memory = record.memory
    if memory is None or record.spec["step"] not in ("inference", "forward"):
        return None
    state = predicted_amount(memory.ledger, "optimizer state") + predicted_amount(
        memory.ledger, "gradients"
    )
    if not state:
        return None
    return Finding(
        rule="optimizer-state-in-forward",
        severity="warning",
        verdict=f"{format_bytes(state)} of this forward's peak belong to training.",
        why="The optimizer's state or gradients were resident: 3P + A where the forward has P + A.",
        next="Profile the forward in a process that has not trained.",
        numbers={"state_bytes": state, "peak_bytes": memory.peak_allocated_bytes},
    )


def copies_outweigh_savings(record: Record) -> Finding | None:
    """Autocast's copies of the weights take more than low precision saved elsewhere."""
    memory = record.memory
    copies = predicted_amount(memory.ledger, COPIES) if memory else 0
    if memory is None or not copies:
        return None
    spec = msgspec.convert(record.spec, RunSpec)
    if why_not_predicted(spec) is not None:
        return None
    capability = compute_capability(record.environment)
    fp32_peak = predict(spec.changed(precision="fp32"), capability).peak_bytes
    saved = fp32_peak - (memory.comparable_peak_bytes - copies)
    if copies <= saved:
        return None
    return Finding(
        rule="autocast-copies-outweigh",
        severity="note",
        verdict=f"{spec.precision} autocast makes the peak larger: copies of weights take "
        f"{format_bytes(copies)} and save {format_bytes(max(saved, 0))}.",
        why=f"The same step in fp32 needs {format_bytes(fp32_peak)}, by the closed form; autocast "
        "keeps a copy of every weight while its region is open.",
        next="Not a fault: at a larger batch or context it turns; bf16-pure has no copies.",
        numbers={"copies_bytes": copies, "saved_bytes": saved, "fp32_bytes": fp32_peak},
    )


def first_step_for_steady(record: Record) -> Finding | None:
    """The measured step was a first step, whose peak is not that of a steady step."""
    memory, spec = record.memory, record.spec
    if memory is None or not memory.first_step_peak_bytes:
        return None
    first, peak = memory.first_step_peak_bytes, memory.peak_allocated_bytes
    has_state = predicted_amount(memory.ledger, "optimizer state") > 0
    stateless = spec["step"] == "train" and spec["optimizer"] != "sgd" and not has_state
    unwarmed = spec["warmup"] == 0 and abs(first / peak - 1) > FIRST_STEP_LIMIT
    if not stateless and not unwarmed:
        return None
    why = (
        "The step that was measured had no optimizer state: AdamW makes it in the first step."
        if stateless
        else f"Without warm-up the first step counts; its peak is {format_bytes(first)}, and "
        f"{format_bytes(peak)} once the optimizer's state and the workspaces are there."
    )
    return Finding(
        rule="first-step-for-steady",
        severity="warning",
        verdict="A first step stands for the steady state here.",
        why=why,
        next="Warm up; publish the steady peak, and the first step's under its own name.",
        numbers={"first_step_bytes": first, "peak_bytes": peak},
    )


def close_to_the_limit(record: Record) -> Finding | None:
    """Little of the device's memory, or of the limit that was set, was free."""
    used, limit = _used_and_limit(record)
    if not used or not limit or used / limit <= CARD_LIMIT:
        return None
    return Finding(
        rule="close-to-the-limit",
        severity="warning",
        verdict=f"{percent(used / limit, 0)} of the memory was in use at the peak.",
        why=f"{format_bytes(used)} of {format_bytes(limit)}; an allocator that runs dry frees its "
        "cache and asks again, which shows in the step time.",
        next="Compare times with a smaller batch, or look for slack and other processes in the "
        "card ledger.",
        numbers={"held_bytes": used, "limit_bytes": limit},
    )


def spilled_to_the_host(record: Record) -> Finding | None:
    """Under WSL the driver pages to the host's memory instead of refusing an allocation."""
    if not record.environment.get("system", {}).get("wsl") or record.spec["device"] == "cpu":
        return None
    signs = [*_too_much_in_use(record), *_slow_backward(record)]
    if not signs:
        return None
    return Finding(
        rule="wsl-spill",
        severity="problem",
        verdict="The run spilled into the host's memory: its times are the bus's, not the card's.",
        why=f"Under WSL the driver pages where it should refuse: {'; '.join(signs)}.",
        next="Set memory_limit below the card's free memory, so that it runs out instead; "
        "measure on Linux itself.",
        numbers={"signs": len(signs)},
    )


def _too_much_in_use(record: Record) -> Iterator[str]:
    memory = record.memory
    capacity = _bytes_of(record, "device", "memory_total_bytes")
    used = max(memory.peak_reserved_bytes or 0, memory.driver_used_bytes or 0) if memory else 0
    if capacity and used > capacity:
        yield f"{format_bytes(used)} in use on a card of {format_bytes(capacity)}"


def _slow_backward(record: Record) -> Iterator[str]:
    phases = record.timing.phases if record.timing else {}
    if "forward" in phases and "backward" in phases and phases["forward"].median_ms:
        ratio = phases["backward"].median_ms / phases["forward"].median_ms
        if ratio > SPILL_RATIO:
            yield f"backward took {ratio:.1f} times the forward"


def _used_and_limit(record: Record) -> tuple[int | None, int | None]:
    """Bytes in use at the peak, and of how many: the limit if one was set, else the device's."""
    memory, spec = record.memory, record.spec
    if memory is None:
        return None, None
    if spec.get("memory_limit"):
        return memory.peak_reserved_bytes or memory.peak_allocated_bytes, spec["memory_limit"]
    if spec["device"] == "cpu":
        return memory.driver_used_bytes, _bytes_of(record, "memory", "capacity_bytes")
    return memory.driver_used_bytes, _bytes_of(record, "device", "memory_total_bytes")


def _bytes_of(record: Record, group: str, key: str) -> int | None:
    values = record.environment.get(group)
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, int) else None


RULES: tuple[Rule, ...] = (
    prediction_missed,
    ledger_does_not_close,
    previous_output_alive,
    forward_in_grad_mode,
    state_in_forward,
    copies_outweigh_savings,
    first_step_for_steady,
    close_to_the_limit,
    spilled_to_the_host,
)
