"""Whether the two processes of a pair can live side by side."""

from __future__ import annotations

from sysbench.core.formatting import format_bytes
from sysbench.core.machine.devices import sample_of
from sysbench.core.machine.host_sampler import available_bytes
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.predict.fit_grid import available_memory, card_here, with_fragments
from sysbench.core.spec.spec import RunSpec


def why_not_pairs(spec_a: RunSpec, spec_b: RunSpec) -> str:
    """Return why rounds have to be measured one at a time; empty if pairs are possible.

    A peak that cannot be predicted, or a device whose free memory is unknown, is no reason: if
    memory runs out, the experiment goes on without pairs.
    """
    specs = (spec_a, spec_b)
    if any(spec.ranks > 1 for spec in specs):
        return "several ranks are measured one side at a time"
    needed: dict[str, int] = {}
    for spec in specs:
        if why_not_predicted(spec) is None:
            room = available_memory(spec, 0)
            peak = with_fragments(predict(spec).peak_bytes, room)
            needed[spec.device] = needed.get(spec.device, 0) + peak
    for spec in specs:
        free = _free_bytes(spec)
        if free is not None and needed.get(spec.device, 0) > free:
            both = format_bytes(needed[spec.device])
            return f"both at once need {both}, and {format_bytes(free)} are free on {spec.device}"
    return ""


def _free_bytes(spec: RunSpec) -> int | None:
    """Bytes that two processes can use together on a spec's device; None if unknown."""
    if not spec.on_cuda:
        return available_bytes()
    sample = sample_of(spec.device)
    if sample is None or sample.memory_used_bytes is None or sample.memory_total_bytes is None:
        return None
    free = sample.memory_total_bytes - sample.memory_used_bytes
    # Each process has a context of its own.
    one = available_memory(spec.changed(memory_limit=0), free, card_here(None))
    return one.least - (free - one.least)
