"""`estimate`: what a spec will cost, from closed forms."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from ...core.devices import capacity_bytes
from ...core.estimate.closed_form import Prediction, fits, predict
from ...core.export.figures import percent
from ...core.export.headline import model_line, settings_line
from ...core.export.table import Table, with_total
from ...core.quantities import format_bytes, format_count
from ...core.spec import RunSpec
from .layout import Line, blank, prose, table_lines, titled
from .output import page_width, print_json, print_lines
from .spec_arguments import chosen_spec


def main(arguments: argparse.Namespace) -> int:
    """Always 0: that a spec does not fit is an answer, not a failure."""
    spec = chosen_spec(arguments)
    prediction = predict(spec)
    capacity = spec.memory_limit or capacity_bytes(spec.device)
    if arguments.json:
        print_json(as_json(prediction, capacity))
    else:
        print_lines(_lines(spec, prediction, capacity, page_width()))
    return 0


def as_json(prediction: Prediction, capacity: int | None) -> dict[str, Any]:
    """The public keys; ``fits`` is null where the capacity is not known."""
    return {
        "parameters": prediction.parameters,
        "flops": {
            "forward": prediction.forward_flops,
            "backward": prediction.backward_flops,
            "step": prediction.step_flops,
        },
        "peak_bytes": prediction.peak_bytes,
        "peak_phase": prediction.peak_phase,
        "ledger": prediction.ledger,
        "capacity_bytes": capacity,
        "fits": None if capacity is None else fits(prediction, capacity),
        "method": prediction.method,
    }


def _lines(
    spec: RunSpec, prediction: Prediction, capacity: int | None, width: int
) -> Iterator[Line]:
    settings = msgspec.to_builtins(spec)
    yield from prose(model_line(settings, prediction.parameters), width, hang=2, style="bold")
    yield from prose(f"{settings_line(settings)} · {spec.device}", width, hang=2)
    flops = as_json(prediction, capacity)["flops"]
    yield from titled(
        "Work per step",
        ([(f"  {name:<12}{format_count(count)}FLOP", "")] for name, count in flops.items()),
    )
    ledger = Table(
        name="ledger",
        title="",
        columns=("name", "bytes", "share"),
        rows=tuple(
            (row.name, row.bytes, row.bytes / (prediction.peak_bytes or 1))
            for row in prediction.ledger
        ),
    )
    total = with_total(ledger, "name", "peak", ("bytes", "share"))
    yield from titled(
        f"Peak memory, predicted, in {prediction.peak_phase}",
        table_lines(total, width, total=True),
    )
    yield blank()
    yield from prose(_answer(spec, prediction, capacity), width, style="bold")
    yield from prose(f"method: {prediction.method}", width, style="dim")


def _answer(spec: RunSpec, prediction: Prediction, capacity: int | None) -> str:
    if capacity is None:
        return f"Whether it fits is not known: {spec.device} does not tell its memory."
    verdict = "Fits" if fits(prediction, capacity) else "Does NOT fit"
    share = prediction.peak_bytes / capacity
    limit = "the memory limit" if spec.memory_limit else spec.device
    return f"{verdict}: {percent(share)} of {format_bytes(capacity)} ({limit})."
