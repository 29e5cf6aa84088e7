"""The answers of `estimate` as lines and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from sysbench.core.formatting import format_bytes, format_count, percent, signed_percent
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.predict.closed_form import Prediction, predict
from sysbench.core.predict.dry_run_client import ExactPrediction, roof_ms
from sysbench.core.predict.fit_grid import (
    EXPANDABLE,
    FRAGMENTS_BYTES,
    FRAGMENTS_SHARE,
    AvailableMemory,
    Card,
    Fit,
    FitCell,
    Verdict,
    available_memory,
    fit_verdict,
    missing_bytes,
    reserved_bytes,
    spare_bytes,
    with_value,
)
from sysbench.core.predict.savings import Savings
from sysbench.core.record.environment import Roof
from sysbench.core.record.memory import LIBRARY_WORKSPACE
from sysbench.core.runs.prediction_errors import error_note, this_machine
from sysbench.core.spec.models import model_presets
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.context import model_line, settings_line
from sysbench.core.tables.estimate_tables import (
    fit_table,
    fit_words,
    grid_table,
    predicted_ledger_table,
    predicted_phases_table,
    savings_table,
)
from sysbench.core.tables.table import Table, with_total
from sysbench.tui.commands.layout import Line, blank, prose, table_lines, titled
from sysbench.tui.fit_text import is_sure, may_fit, nothing_fits


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A prediction, with the capacity and roof to compare it with.

    Attributes:
        why: Why the memory is not predicted; "" if it is.
        capacity_bytes: Memory to fit into; None if unknown.
        settings: Settings of CUDA's allocator in this environment.
        roof: For the roofline time of exact mode; None with a reason in ``why_no_roof``.
        why_no_workspace: Why a part of the peak on this CPU is not predicted.
    """

    spec: RunSpec
    prediction: Prediction
    why: str
    capacity_bytes: int | None
    card: Card
    roof: Roof | None
    why_no_roof: str
    settings: AllocatorSettings
    why_no_workspace: str = ""

    @property
    def room(self) -> AvailableMemory | None:
        """Memory available to the step; None if unknown."""
        if self.capacity_bytes is None:
            return None
        return available_memory(self.spec, self.capacity_bytes, self.card)

    @cached_property
    def closed_form(self) -> Prediction:
        return predict(self.spec, self.card.capability)

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes that CUDA's allocator reserves; None without a dry run."""
        return None if self.why else reserved_bytes(self.prediction)

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether the step fits; None if the peak or the capacity is unknown."""
        if self.why or self.room is None:
            return None
        return fit_verdict(self.prediction, self.room, self.settings)

    @property
    def fits(self) -> bool | None:
        return None if self.verdict is None else self.verdict == "fits"

    @cached_property
    def fits_expandable(self) -> bool | None:
        """Whether it certainly fits with expandable segments.

        None unless exact mode finds that it may not fit without them.
        """
        if self.fits is not False or self.room is None or self.reserved_bytes is None:
            return None
        if self.settings.expandable_segments:
            return None
        return fit_verdict(self.prediction, self.room, EXPANDABLE) == "fits"

    @property
    def roof_times(self) -> dict[str, float]:
        """Roofline milliseconds by phase; empty without a roof."""
        if self.roof is None or not isinstance(self.prediction, ExactPrediction):
            return {}
        times = {phase.phase: roof_ms(phase, self.roof) for phase in self.prediction.phases}
        return {phase: time for phase, time in times.items() if time is not None}

    def missing(self) -> dict[str, str]:
        """Return the reasons for null values, by key."""
        reasons = {}
        if self.why:
            reasons["peak_bytes"] = self.why
        elif self.why_no_workspace:
            reasons[f"ledger.{LIBRARY_WORKSPACE}"] = self.why_no_workspace
        if self.reserved_bytes is None and self.spec.device != "cpu":
            reasons["reserved_bytes"] = self.why or NO_DRY_RUN
        if self.capacity_bytes is None:
            reasons["capacity_bytes"] = (
                f"{self.spec.device} does not report its memory: give it with --capacity"
            )
        if isinstance(self.prediction, ExactPrediction) and not self.roof_times:
            reasons["roofline_ms"] = self.why_no_roof or (
                "no bandwidth is known: give both with --peak TFLOPS,GB/S"
            )
        return reasons


NO_DRY_RUN = "it depends on the order of allocations: use --exact"


def estimate_lines(estimate: Estimate, width: int) -> Iterator[Line]:
    spec, prediction = estimate.spec, estimate.prediction
    yield from _head(spec, estimate.card, width, prediction.parameters)
    works = {
        "forward": prediction.forward_flops,
        "backward": prediction.backward_flops,
        "step": prediction.step_flops,
    }
    yield from titled(
        "Work per step",
        ([(f"  {name:<12}{format_count(count)}FLOP", "")] for name, count in works.items()),
    )
    if not estimate.why:
        table = predicted_ledger_table(prediction)
        summed = [name for name in table.columns if name != "name"]
        total = with_total(table, "name", "peak", summed)
        yield from titled(table.title, table_lines(total, width, total=True))
    if isinstance(prediction, ExactPrediction):
        table = predicted_phases_table(prediction, estimate.roof_times)
        yield from titled(table.title, table_lines(table, width, drop=("place",)))
    yield blank()
    yield from prose(_answer(estimate), width, style="bold")
    for text in _remarks(estimate):
        yield from prose(text, width, style="dim")


def estimate_tables(estimate: Estimate) -> list[Table]:
    prediction = estimate.prediction
    tables = [] if estimate.why else [predicted_ledger_table(prediction)]
    if isinstance(prediction, ExactPrediction):
        tables.append(predicted_phases_table(prediction, estimate.roof_times))
    return tables


def fit_lines(spec: RunSpec, fit: Fit, card: Card, method: str, width: int) -> Iterator[Line]:
    yield from _head(with_value(spec, fit.key, fit.largest) if fit.largest else spec, card, width)
    table = fit_table(fit)
    yield from titled(table.title, table_lines(table, width, columns=("quantity", "value")))
    yield blank()
    yield from prose(_fit_answer(fit, card), width, style="bold")
    remarks = (*_fit_remarks(spec, fit), *_workspace_remarks(spec, card.capability))
    for text in (*remarks, f"method: {method}"):
        yield from prose(text, width, style="dim")


def grid_lines(
    spec: RunSpec, cells: Sequence[FitCell], card: Card, method: str, width: int
) -> Iterator[Line]:
    yield from _head(spec, card, width)
    table = grid_table(cells)
    shown = [name for name in table.columns if name != "note"]
    yield from titled(table.title, table_lines(table, width, columns=shown))
    yield blank()
    for why in dict.fromkeys(cell.why for cell in cells if cell.why):
        yield from prose(f"–: {why}", width, style="dim")
    capacities = sorted({cell.capacity_bytes for cell in cells if cell.capacity_bytes})
    if len(capacities) == 1:
        yield from prose(f"capacity: {_capacity(capacities[0], card)}", width, style="dim")
    elif not capacities:
        text = f"{spec.device} does not report its memory: give it with --capacity"
        yield from prose(text, width, style="dim")
    for text in (*_workspace_remarks(spec, card.capability), f"method: {method}"):
        yield from prose(text, width, style="dim")


def savings_lines(
    spec: RunSpec, savings: Savings, card: Card, method: str, width: int
) -> Iterator[Line]:
    yield from _head(spec, card, width)
    if savings.savings:
        table = savings_table(savings)
        yield from titled(table.title, table_lines(table, width, drop=("peak_phase",)))
    yield blank()
    yield from prose(_savings_answer(savings), width, style="bold")
    for text in (*savings.remarks, *_workspace_remarks(spec, card.capability), f"method: {method}"):
        yield from prose(text, width, style="dim")


def _savings_answer(savings: Savings) -> str:
    peak = format_bytes(savings.peak_bytes)
    if not savings.savings:
        return f"No single change that was tried reduces the peak of {peak}."
    most = savings.savings[0]
    change = " ".join(f"{key}={value}" for key, value in most.settings.items())
    saved = format_bytes(most.saved_bytes)
    return f"{change} saves the most, {saved} of {peak}; its cost: {most.price}."


def _head(spec: RunSpec, card: Card, width: int, parameters: int = 0) -> Iterator[Line]:
    settings = msgspec.to_builtins(spec)
    model = model_line(settings, parameters or spec.dimensions.parameters)
    yield from prose(model, width, hang=2, style="bold")
    preset = model_presets().get(spec.model)
    if preset is not None and preset.note:
        yield from prose(f"{preset.name}: {preset.note}", width, hang=2, style="dim")
    device = f"{card.name} (--card)" if card.name else spec.device
    yield from prose(f"{settings_line(settings)} · {device}", width, hang=2)


def _answer(estimate: Estimate) -> str:
    capacity = estimate.capacity_bytes
    if estimate.why:
        return f"Peak memory: n/a, {estimate.why}."
    if capacity is None:
        return f"Unknown whether it fits: {estimate.missing()['capacity_bytes']}."
    assert estimate.verdict is not None
    share = percent((estimate.reserved_bytes or estimate.prediction.peak_bytes) / capacity)
    words = f"{VERDICTS[estimate.verdict]}: {share} of {_capacity(capacity, estimate.card)}"
    return f"{words}, {_margin(estimate)}."


def _capacity(capacity_bytes: int, card: Card) -> str:
    size = format_bytes(capacity_bytes)
    return f"{size} ({card.name})" if card.name else size


def _margin(estimate: Estimate) -> str:
    """Headroom, or the amount of memory missing."""
    prediction, room = estimate.prediction, estimate.room
    assert room is not None
    if estimate.verdict == "fits":
        return f"{format_bytes(spare_bytes(prediction, room))} to spare"
    missing = format_bytes(missing_bytes(prediction, room, estimate.settings))
    return f"it may lack {missing}" if estimate.verdict == "close" else f"it needs {missing} more"


VERDICTS: dict[Verdict, str] = {
    "fits": "Fits",
    "close": "May not fit",
    "over": "Does NOT fit",
}


def _fit_answer(fit: Fit, card: Card) -> str:
    capacity = _capacity(fit.capacity_bytes, card)
    if not fit.largest:
        return f"Nothing {nothing_fits(fit)} in {capacity}: {_lacks(fit)}."
    largest = f"The largest {fit_words(fit.key)} that fits in {capacity} is {fit.largest:,}"
    return f"{largest}; {_lacks(fit)}."


def _lacks(fit: Fit) -> str:
    if fit.next is None or fit.over_bytes is None:
        return f"the spec allows no larger {fit_words(fit.key)}"
    following, missing = f"{fit.key} {fit.next:,}", format_bytes(fit.over_bytes)
    if is_sure(fit):
        return f"{following} needs {missing} more"
    return f"{following} may lack {missing}"


def _fit_remarks(spec: RunSpec, fit: Fit) -> Iterator[str]:
    if not fit.largest:
        yield "use --savings to see what single changes would save"
    if spec.device == "cpu":
        return
    yield (
        f"usable: {format_bytes(fit.room_bytes)} to "
        f"{format_bytes(fit.room_bytes + fit.doubt_bytes)} of "
        f"{format_bytes(fit.capacity_bytes)} ({_unusable(spec)})"
    )
    if may_fit(fit):
        yield may_fit(fit)
    if fit.reserved_bytes is None:
        yield _fragmentation_note()
    else:
        reserved = format_bytes(fit.reserved_bytes)
        yield f"reserved on a larger card: {reserved} at {fit.key} {fit.largest:,}"
    if fit.expandable_largest:
        yield (
            f"largest with PYTORCH_ALLOC_CONF=expandable_segments:True: {fit.expandable_largest:,}"
        )


def _unusable(spec: RunSpec) -> str:
    if spec.memory_limit:
        return "the limit applies to the allocator only"
    return "driver and context take the rest"


def _fragmentation_note() -> str:
    return (
        f"includes {percent(FRAGMENTS_SHARE)} of the peak, at least "
        f"{format_bytes(FRAGMENTS_BYTES)}, for fragmentation; --exact simulates the allocator"
    )


def _workspace_remarks(spec: RunSpec, capability: str | None) -> Iterator[str]:
    if spec.on_cuda and capability is None:
        yield (
            "cuBLAS workspaces are those of compute capability 9.0, the largest; set --capability "
            "for another"
        )


def _room_remarks(estimate: Estimate) -> Iterator[str]:
    spec, prediction, room = estimate.spec, estimate.prediction, estimate.room
    if spec.device == "cpu" or estimate.why:
        return
    if isinstance(prediction, ExactPrediction) and prediction.held is not None:
        peak = prediction.held
        yield (
            f"reserved without a limit: {format_bytes(peak.reserved_bytes)}, of which "
            f"{format_bytes(peak.allocated_bytes)} in blocks"
        )
    yield from _workspace_remarks(spec, estimate.card.capability)
    if room is None:
        return
    yield (
        f"usable: {format_bytes(room.least)} to "
        f"{format_bytes(room.least + room.uncertainty_bytes)} ({_unusable(spec)})"
    )
    if estimate.reserved_bytes is None:
        yield _fragmentation_note()
    if estimate.fits_expandable:
        yield "it fits with PYTORCH_ALLOC_CONF=expandable_segments:True"


def _remarks(estimate: Estimate) -> Iterator[str]:
    spec, prediction = estimate.spec, estimate.prediction
    yield f"method: {prediction.method}"
    yield from _room_remarks(estimate)
    if estimate.why_no_workspace:
        yield f"{LIBRARY_WORKSPACE}: {estimate.why_no_workspace}"
    if isinstance(prediction, ExactPrediction):
        if not spec.is_own:
            closed = estimate.closed_form.peak_bytes
            over = round(closed / prediction.peak_bytes - 1, 3) + 0.0  # + 0.0 turns -0.0 into 0.0
            yield f"closed form: {format_bytes(closed)} ({signed_percent(over)})"
        if times := estimate.roof_times:
            yield f"roofline: the step takes at least {sum(times.values()):.3g} ms"
        else:
            yield f"roofline time: n/a, {estimate.missing()['roofline_ms']}"
        yield (
            f"estimated in {prediction.seconds:.2f} s, after {prediction.import_seconds:.2f} s "
            "for importing torch"
        )
    past = None if estimate.card.name else error_note(this_machine(spec.device), spec)
    if past:
        yield past
