"""Rules on memory: prediction, unexpected allocations, limits."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sysbench.core.formatting import format_bytes, percent, signed_percent
from sysbench.core.memory.oom import held, largest_rows, out_of_memory, place
from sysbench.core.memory.predicted import predicted_amount
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.predict.forward import COPIES
from sysbench.core.predict.requests import WARMUP_STEPS
from sysbench.core.record.environment import capacity_bytes, compute_capability
from sysbench.core.record.memory import RESIDUAL
from sysbench.core.record.record import Finding, Memory, Record
from sysbench.core.spec.spec import RunSpec
from sysbench.core.step_patterns import growth_of, period_of

PREDICTION_LIMIT = 0.05
LEFTOVER_LIMIT = 0.01
CARD_LIMIT = 0.95
RESIDUAL_LIMIT = 0.01
UNSPLIT_UNKNOWN = "ledger.blocks larger than asked for"
SPILL_RATIO = 6.0
"""Backward over forward time; about 2 if all memory is on the GPU."""


def prediction_missed(record: Record) -> Finding | None:
    memory = record.memory
    if memory is None or not memory.compared_bytes:
        return None
    error, tensor_error = memory.prediction_error, memory.comparable_prediction_error
    if error is None or abs(error) <= PREDICTION_LIMIT or memory.growth:
        return None
    if tensor_error is not None and abs(tensor_error) <= PREDICTION_LIMIT:
        if not memory.library_workspace_bytes:
            return None
        return _only_library_workspace(memory, error, tensor_error)
    return Finding(
        rule="prediction-missed",
        severity="note",
        verdict=f"The predicted peak is {signed_percent(error)} off.",
        why=f"Predicted {format_bytes(memory.compared_bytes)}, measured "
        f"{format_bytes(memory.peak_allocated_bytes)} in {memory.peak_phase}.",
        next="Compare the two ledgers on the Memory tab.",
        numbers={"error": error},
    )


def _only_library_workspace(memory: Memory, error: float, tensor_error: float) -> Finding:
    added = format_bytes(memory.library_workspace_bytes)
    return Finding(
        rule="prediction-missed",
        severity="note",
        verdict=f"Library workspace adds {added} to the peak; predictions do not include it.",
        why=f"Tensors took {format_bytes(memory.tensor_peak_bytes)}, and the prediction is "
        f"{signed_percent(tensor_error)} off that; the CPU library used the rest in a matrix "
        "product.",
        next="Expected: keep headroom for it. It depends on the CPU's instruction set.",
        numbers={
            "error": error,
            "tensor_error": tensor_error,
            "library_workspace_bytes": memory.library_workspace_bytes,
        },
    )


def ledger_does_not_close(record: Record) -> Finding | None:
    """The allocator's counter differs from the sum of the recorded allocations."""
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
        verdict=f"The memory ledger does not add up: {signed_percent(wrong[worst])} at {worst}.",
        why=f"The allocator's counter has {format_bytes(abs(left))} "
        f"{'more' if left > 0 else 'less'} than the recorded allocations"
        + (f"; this includes the rounding of block sizes: {unsplit}." if unsplit else "."),
        next="Use the peak, which is the counter's; do not report single rows of the ledger.",
        numbers={"residual_bytes": left, "share": wrong[worst], "columns": len(wrong)},
    )


def previous_output_alive(record: Record) -> Finding | None:
    """The output or the graph of the previous step was alive when a step began."""
    memory = record.memory
    if memory is None or "after warm-up" not in memory.columns or memory.growth:
        return None
    before = memory.columns["after warm-up"]
    leftover = predicted_amount(before, "activations") + predicted_amount(before, "outputs")
    if leftover <= LEFTOVER_LIMIT * memory.peak_allocated_bytes:
        return None
    return Finding(
        rule="previous-output-alive",
        severity="warning",
        verdict=f"{format_bytes(leftover)} of the previous step is alive when a step begins.",
        why="Its output or a part of its graph is still referenced, so the peak has both steps'.",
        next="Delete the output before the next forward, or let it go out of scope.",
        numbers={"left_bytes": leftover, "peak_bytes": memory.peak_allocated_bytes},
    )


def memory_grows(record: Record) -> Finding | None:
    """Each step leaves more memory in use than the one before."""
    memory = record.memory
    if memory is None or not memory.growth:
        return None
    ends = [step.end_bytes for step in memory.steps]
    growth, first = growth_of(ends), memory.growth[0]
    place = first.stack_words or f"module {first.module}"
    largest = f"{format_bytes(first.bytes)} of it is {first.category}"
    if memory.is_counted:
        place = next((text for text in first.stack if text.startswith("held by ")), place)
    else:
        largest += f" allocated in {first.phase}, in module {first.module}"
    return Finding(
        rule="memory-grows",
        severity="warning",
        verdict=f"Memory grows by {format_bytes(growth)} a step, since step {first.since_step}: "
        f"{place}.",
        why=f"The ends of the {len(ends)} recorded steps rise from {format_bytes(ends[0])} to "
        f"{format_bytes(ends[-1])}; {largest}.",
        next="Look for a list, buffer or sum that keeps tensors of each step; detach what is kept "
        "for logging.",
        numbers={"growth_bytes": growth, "since_step": first.since_step, "steps": len(ends)},
    )


HELPS = {
    ("activations", "outputs", "inputs"): "Use a smaller batch or context, activation "
    "checkpointing, or a lower precision.",
    ("parameters", "gradients", "optimizer state"): "Use a lower precision, an optimizer with less "
    "state, or shards.",
    ("other tensors",): "See what keeps them: --section oom lists variables and lines.",
}
"""Remedies by rows of the ledger: those that hold the most together decide."""


def command_out_of_memory(record: Record) -> Finding | None:
    """A watched command ended because a request for memory failed."""
    pass_and_oom = out_of_memory(record)
    if pass_and_oom is None:
        return None
    oom = pass_and_oom[1]
    line, _, function = place(oom).partition(" ")
    where = f" at {line} in {function}" if function else ""
    of_rank = "" if oom.rank is None else f" on rank {oom.rank}"
    asked = "" if oom.requested_bytes is None else f" asked {format_bytes(oom.requested_bytes)}"
    largest = [row for row in oom.origins if row.stack][:1]
    parts = [held(oom)] + [
        f"the largest holder is {row.stack[0]} of {row.category}, {format_bytes(row.bytes)}"
        + "".join(f", {text}" for text in row.stack[1:])
        for row in largest
    ]
    bytes_of = {row.name: row.bytes for row in oom.ledger}
    most = max(HELPS, key=lambda names: sum(bytes_of.get(name, 0) for name in names))
    return Finding(
        rule="out-of-memory",
        severity="problem",
        verdict=f"Out of memory{of_rank}:{asked}{where}; {largest_rows(oom)}.",
        why=f"{'; '.join(filter(None, parts))}.",
        next=HELPS[most],
        numbers={
            name: value
            for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")
            if (value := getattr(oom, name)) is not None
        },
    )


def memory_differs_by_step(record: Record) -> Finding | None:
    """The measured steps have different peaks, and none grows."""
    memory = record.memory
    if memory is None or not memory.steps or memory.growth:
        return None
    measured = memory.steps[WARMUP_STEPS:]
    low, high = (choose(measured, key=lambda step: step.peak_bytes) for choose in (min, max))
    if high.peak_bytes - low.peak_bytes <= LEFTOVER_LIMIT * high.peak_bytes:
        return None
    period = period_of([step.peak_bytes for step in memory.steps[1:]])
    every = f", the same every {period} steps" if period else ""
    shapes = f": {low.inputs} against {high.inputs}" if low.inputs != high.inputs else ""
    return Finding(
        rule="memory-differs-by-step",
        severity="note",
        verdict=f"Steps differ{every}: their peaks are from {format_bytes(low.peak_bytes)} to "
        f"{format_bytes(high.peak_bytes)}.",
        why=f"Step {low.step} has the lowest peak and step {high.step} the highest{shapes}. The "
        f"peak and the ledger are those of step {high.step}.",
        next="Expected with inputs of several sizes: the largest decides what fits.",
        numbers={
            "low_bytes": low.peak_bytes,
            "high_bytes": high.peak_bytes,
            **({"period": period} if period else {}),
        },
    )


def forward_in_grad_mode(record: Record) -> Finding | None:
    """A forward without a backward built a graph."""
    memory = record.memory
    if memory is None or record.spec["step"] not in ("inference", "forward"):
        return None
    saved = predicted_amount(memory.ledger, "activations")
    if saved <= LEFTOVER_LIMIT * memory.peak_allocated_bytes:
        return None
    return Finding(
        rule="forward-in-grad-mode",
        severity="note",
        verdict=f"{format_bytes(saved)} of this forward's peak is an unused graph.",
        why="It ran in grad mode: the peak is P + A; without a graph it would be P.",
        next="Use step=inference to measure without a graph; report which of the two it is.",
        numbers={"saved_bytes": saved, "peak_bytes": memory.peak_allocated_bytes},
    )


def state_in_forward(record: Record) -> Finding | None:
    """Optimizer state or gradients were allocated during a forward."""
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
        verdict=f"{format_bytes(state)} of this forward's peak belongs to training.",
        why="Optimizer state or gradients were allocated: 3P + A, where a forward needs P + A.",
        next="Profile the forward in a process that did not train before.",
        numbers={"state_bytes": state, "peak_bytes": memory.peak_allocated_bytes},
    )


def copies_outweigh_savings(record: Record) -> Finding | None:
    """Autocast's weight copies take more memory than low precision saves elsewhere."""
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
        verdict=f"{spec.precision} autocast raises the peak: weight copies take "
        f"{format_bytes(copies)} and save {format_bytes(max(saved, 0))}.",
        why=f"The same step in fp32 needs {format_bytes(fp32_peak)} (closed form); autocast "
        "holds a copy of every weight while its region is open.",
        next="Expected: a larger batch or context saves more; bf16-pure has no copies.",
        numbers={"copies_bytes": copies, "saved_bytes": saved, "fp32_bytes": fp32_peak},
    )


def first_step_for_steady(record: Record) -> Finding | None:
    """The peak is that of a first step, not of a steady one."""
    memory, spec = record.memory, record.spec
    if memory is None or not memory.first_step_peak_bytes:
        return None
    first, peak = memory.first_step_peak_bytes, memory.peak_allocated_bytes
    has_state = predicted_amount(memory.ledger, "optimizer state") > 0
    # A custom optimizer may have no state at all.
    makes_state = spec["step"] == "train" and spec["optimizer"] not in ("sgd", "custom")
    if not makes_state or has_state:
        return None
    return Finding(
        rule="first-step-for-steady",
        severity="warning",
        verdict="The peak is that of the first step, not of a steady step.",
        why="The measured step had no optimizer state: AdamW allocates it in the first step.",
        next="Warm up first; report the steady peak, and the first step's separately.",
        numbers={"first_step_bytes": first, "peak_bytes": peak},
    )


def close_to_the_limit(record: Record) -> Finding | None:
    used, limit = _used_and_limit(record)
    if not used or not limit or used / limit <= CARD_LIMIT:
        return None
    return Finding(
        rule="close-to-the-limit",
        severity="warning",
        verdict=f"The peak used {percent(used / limit, 0)} of the memory.",
        why=f"{format_bytes(used)} of {format_bytes(limit)}; a full allocator frees its cache "
        "and retries, which slows the step.",
        next="Compare with a smaller batch; look for unused reserved memory and other processes "
        "in the process memory table.",
        numbers={"held_bytes": used, "limit_bytes": limit},
    )


def spilled_to_the_host(record: Record) -> Finding | None:
    """Under WSL the driver pages to host memory instead of failing an allocation."""
    if not record.environment.get("system", {}).get("wsl") or record.spec["device"] == "cpu":
        return None
    signs = [*_too_much_in_use(record), *_slow_backward(record)]
    if not signs:
        return None
    return Finding(
        rule="wsl-spill",
        severity="problem",
        verdict="The run may have spilled into host memory; its times then measure the bus.",
        why=f"Under WSL the driver pages instead of failing: {'; '.join(signs)}.",
        next="Set memory_limit below the free GPU memory, so that it fails instead, or measure on "
        "native Linux.",
        numbers={"signs": len(signs)},
    )


def _too_much_in_use(record: Record) -> Iterator[str]:
    memory = record.memory
    capacity = capacity_bytes(record.environment, record.spec)
    used = max(memory.peak_reserved_bytes or 0, memory.driver_used_bytes or 0) if memory else 0
    if capacity and used > capacity:
        yield f"{format_bytes(used)} in use on a GPU with {format_bytes(capacity)}"


def _slow_backward(record: Record) -> Iterator[str]:
    phases = record.timing.phases if record.timing else {}
    if "forward" in phases and "backward" in phases and phases["forward"].median_ms:
        ratio = phases["backward"].median_ms / phases["forward"].median_ms
        if ratio > SPILL_RATIO:
            yield f"backward took {ratio:.1f} times the forward"


def _used_and_limit(record: Record) -> tuple[int | None, int | None]:
    """Bytes in use at the peak, and the limit: the spec's, else the device's capacity."""
    memory, spec = record.memory, record.spec
    if memory is None:
        return None, None
    if spec.get("memory_limit"):
        return memory.peak_reserved_bytes or memory.peak_allocated_bytes, spec["memory_limit"]
    return memory.driver_used_bytes, capacity_bytes(record.environment, spec)


RULES = (
    prediction_missed,
    ledger_does_not_close,
    previous_output_alive,
    memory_grows,
    memory_differs_by_step,
    forward_in_grad_mode,
    state_in_forward,
    copies_outweigh_savings,
    first_step_for_steady,
    close_to_the_limit,
    spilled_to_the_host,
)
