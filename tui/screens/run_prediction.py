"""The panel of predictions: size, work, and memory against the device."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from sysbench.core.spec.models import published_models
from sysbench.tui.text import (
    VERDICT_WORDS,
    amount,
    closed_form_error,
    is_sure,
    may_fit,
    nothing_fits,
    operations,
    shape,
)
from sysbench.tui.theme import swatch_of
from sysbench.tui.widgets.traces import bar

if TYPE_CHECKING:
    from sysbench.core.predict.closed_form import Prediction
    from sysbench.core.predict.dry_run_client import ExactPrediction
    from sysbench.core.spec.spec import RunSpec
    from sysbench.tui.screens.run_device_prediction import DevicePrediction, PredictedWorld

FIGURE_WIDTH = 10
WIDEST = 60
GRID_CELL = 11
GRID_ROOM = 50
TALL = 30
"""Below this screen height there are no blank lines and no grid."""
GRID_MARGIN = 7
RANK_CELL = 9
"""Columns of a cell of the heat strip."""
SHORT_STRIP, LONG_STRIP = 1, 6
"""Rows of cells in the heat strip below and from `TALL`."""
MARKS: dict[str, tuple[str, str]] = {
    "fits": ("✓", "$success"),
    "close": ("?", "$warning"),
    "over": ("✗", "$error"),
    "": ("", "$accent"),
}
"""Mark and colour of a verdict."""


class PredictionView(Static):
    def __init__(self) -> None:
        super().__init__(markup=False)
        self.predicted: DevicePrediction | None = None
        self.division: PredictedWorld | None = None
        self._reasons: dict[str, str] = {}
        self._exact = ""
        self._played: Prediction | None = None

    def show(
        self,
        predicted: DevicePrediction | None,
        reasons: dict[str, str],
        division: PredictedWorld | None = None,
    ) -> None:
        self.predicted, self._reasons, self.division = predicted, reasons, division
        self._exact, self._played = "", None
        self.paint()

    def show_world(self, division: PredictedWorld) -> None:
        self.division = division
        self.paint()

    def show_exact(self, text: str, played: Prediction | None = None) -> None:
        """Show a line about exact mode above the prediction, until the next `show`; below it the
        ledger of a model that has no closed form."""
        self._exact, self._played = text, played
        self.paint()

    def on_resize(self) -> None:
        self.paint()

    def paint(self) -> None:
        lines: list[Content | str] = []
        if self._reasons:
            fields = "1 field" if len(self._reasons) == 1 else f"{len(self._reasons)} fields"
            lines.append(Content.styled(f"{fields} to fix:", "bold"))
        for field, allowed in self._reasons.items():
            lines.append(Content.assemble((f"✗ {field} ", "$error"), allowed))
        is_tall = self.screen.size.height >= TALL
        if self.predicted is not None and self.division is not None:
            rows = LONG_STRIP if is_tall else SHORT_STRIP
            lines = [*world_lines(self.predicted, self.division, self.size.width, rows)]
            if not is_tall:
                lines = [line for line in lines if line]
        elif self.predicted is not None:
            lines = prediction_lines(self.predicted, self.size.width, self._played)
            if self._exact:
                exact = textwrap.wrap(self._exact, max(20, self.size.width))
                lines = [*(Content.styled(line, "bold") for line in exact), *lines]
            if not is_tall:
                lines = [line for line in lines if line]
            elif self.size.width >= GRID_ROOM and not self.predicted.why_unknown:
                lines += ["", *prediction_grid(self.predicted, self.size.width)]
        self.update(Content("\n").join(lines))


def prediction_lines(
    predicted: DevicePrediction, width: int, played: Prediction | None = None
) -> list[Content | str]:
    spec, prediction = predicted.spec, predicted.prediction
    if spec.is_own and played is not None:
        played_spec = replace(predicted, prediction=played, why_unknown="")
        return [*_card_lines(predicted), "", *_memory_lines(played_spec, width)]
    if spec.is_own:
        return _own_lines(predicted, width)
    answer = [_verdict(predicted), *_batch_lines(predicted)]
    asked = [*_card_lines(predicted), *answer, ""] if predicted.card else []
    lines: list[Content | str] = [
        *asked,
        Content.assemble((f"{spec.dimensions.parameters:,}", "bold"), " parameters"),
        *(Content.styled(line, "$foreground 60%") for line in flow(shape(spec), width)),
        *map(
            Content,
            flow(
                [
                    f"{operations(prediction.step_flops)} a step",
                    f"{operations(prediction.forward_flops)} forward",
                ],
                width,
            ),
        ),
        "",
        *_memory_lines(predicted, width),
    ]
    if not predicted.card:
        lines += ["", *answer]
    if predicted.why_no_workspace:
        text = f"Library workspace: {predicted.why_no_workspace}"
        lines.append(Content.styled(text, "$foreground 60%"))
    if predicted.past:
        lines.append(Content.styled(predicted.past, "$foreground 60%"))
    lines += [Content.styled(f"! {text}", "$warning") for text in predicted.warnings]
    return lines


def world_lines(
    predicted: DevicePrediction, division: PredictedWorld, width: int, rows: int
) -> Iterator[Content | str]:
    """The worst rank and why, the heat strip, then the ledger of that rank."""
    from sysbench.core.predict.layout_plan import why_worst  # lazy: first frame

    spec, groups, width = predicted.spec, division.groups, max(20, width)
    yield from _card_lines(predicted)
    if division.error:
        for line in textwrap.wrap(f"✗ {division.error}", width):
            yield Content.styled(line, "$error")
    elif not groups:
        ranks = f"{division.world.size:,} ranks"
        yield from textwrap.wrap(f"{ranks}: running each kind on meta tensors…", width)
    else:
        yield world_verdict(predicted, division)
        yield from map(Content, textwrap.wrap(why_worst(groups), width))
        yield ""
        yield from heat_strip(predicted, division, width, rows)
    yield ""
    if not spec.is_own:
        yield Content.assemble((f"{spec.dimensions.parameters:,}", "bold"), " parameters")
    for line in flow(shape(spec), width):
        yield Content.styled(line, "$foreground 60%")
    if groups:
        worst = groups[0].worst
        yield ""
        yield Content.styled(f"Rank {worst.rank}", "bold")
        of_rank = replace(predicted, prediction=worst.prediction, why_unknown="")
        yield from _memory_lines(of_rank, width)
    yield from (Content.styled(f"! {text}", "$warning") for text in predicted.warnings)


def world_verdict(
    predicted: DevicePrediction, division: PredictedWorld, *, is_short: bool = False
) -> Content:
    """Whether the worst rank fits; NCCL's buffers are in no figure."""
    if not division.verdicts:
        return Content("Fits: unknown without a capacity.")
    verdict = division.verdicts[0]
    words = VERDICT_WORDS[verdict].capitalize()
    mark, style = MARKS[verdict]
    need, capacity = division.groups[0].worst.needed_bytes, predicted.capacity_bytes
    beside = "" if is_short or predicted.spec.device == "cpu" else ", without NCCL"
    text = f": {amount(need)} of {amount(capacity)}{beside}"
    return Content.assemble((f"{mark} {words}", f"bold {style}"), text)


def heat_strip(
    predicted: DevicePrediction, division: PredictedWorld, width: int, rows: int
) -> Iterator[Content]:
    """A cell for each group of ranks: its share of the capacity, and how many ranks are like it."""
    capacity = predicted.capacity_bytes
    across = max(1, (width + 1) // (RANK_CELL + 1))
    cells = list[tuple[Content, Content, Content]]()
    for index, group in enumerate(division.groups):
        need = group.worst.needed_bytes
        mark, style = MARKS[division.verdicts[index] if division.verdicts else ""]
        share = need / (capacity or division.groups[0].worst.needed_bytes)
        head = f"{mark} {100 * share:.0f} %".strip() if capacity else amount(need)
        foot = f"{group.ranks[0].rank} ×{group.size}"
        cells.append(
            (
                Content.styled(f"{head:<{RANK_CELL}}", f"bold {style}"),
                Content.assemble(
                    (filled := bar(share, RANK_CELL).rstrip() or "▏", style),
                    ("·" * (RANK_CELL - len(filled)), "$foreground 40%"),
                ),
                Content.styled(f"{foot:<{RANK_CELL}}", "$foreground 75%"),
            )
        )
    shown = cells[: across * rows]
    for begin in range(0, len(shown), across):
        yield from map(Content(" ").join, zip(*shown[begin : begin + across], strict=True))
    hidden = len(cells) - len(shown)
    legend = ["share of memory" if capacity else "need", "rank ×equal", "^t table"]
    for line in flow([*([f"{hidden} more"] if hidden else []), *legend], width):
        yield Content.styled(line, "$foreground 60%")


def prediction_line(
    predicted: DevicePrediction | None, division: PredictedWorld | None = None
) -> Content:
    if predicted is not None and division is not None:
        return world_verdict(predicted, division, is_short=True) if division.groups else Content("")
    if predicted is None or predicted.why_unknown:
        return Content("")
    peak = Content.styled(amount(predicted.prediction.peak_bytes), "bold $accent")
    return Content(" · ").join([peak, _verdict(predicted)])


def _batch_lines(predicted: DevicePrediction) -> list[Content | str]:
    """The largest batch that fits and those that may fit, as in ``estimate --fit batch``."""
    fit = predicted.batches
    if fit is None:
        return []
    if not fit.largest and not is_sure(fit):
        return [f"No batch {nothing_fits(fit)}: {may_fit(fit)}"]
    largest = f"Largest batch that fits: {fit.largest:,}"
    return [f"{largest}; {may_fit(fit)}" if may_fit(fit) else largest]


def _own_lines(predicted: DevicePrediction, width: int) -> list[Content | str]:
    spec = predicted.spec
    published = None if spec.model_args else published_models().get(spec.model)
    unknown = "FLOPs and peak" if published else "Parameters, FLOPs and peak"
    text = f"{unknown}: use Predict exactly (^p), which runs this code"
    count = (f"{published.parameters:,}", "bold") if published else ""
    return [
        *_card_lines(predicted),
        *([Content.assemble(count, " parameters")] if count else []),
        *map(Content, [*textwrap.wrap(text, max(20, width)), *flow(shape(spec), width)]),
        *(Content(f"! {text}") for text in predicted.warnings),
    ]


def _card_lines(predicted: DevicePrediction) -> list[Content]:
    if predicted.card is None:
        return []
    name = predicted.card.name
    return [Content.assemble("For ", (name, "bold $warning"), "; Start runs on this machine")]


def exact_text(spec: RunSpec, closed: Prediction, exact: ExactPrediction) -> str:
    if spec.is_own:
        kind = "not exact" if exact.limits else "exact"
        without = f" without {', '.join(exact.uncounted)}" if exact.uncounted else ""
        limits = "".join(f"; {limit}" for limit in exact.limits)
        return (
            f"{kind}: {exact.parameters:,} parameters, {operations(exact.step_flops)} a step"
            f"{without}, "
            f"{amount(exact.peak_bytes)} in {exact.peak_phase} ({exact.peak_place}){limits}"
        )
    return (
        f"exact: {amount(exact.peak_bytes)} in {exact.peak_phase} ({exact.peak_place}), "
        f"closed form {closed_form_error(closed, exact)}"
    )


def exact_verdict(predicted: DevicePrediction, exact: Prediction) -> str:
    """Whether the dry run's step fits: ``; does not fit cuda:0``; empty if unknown."""
    from sysbench.core.predict.allocator_settings import parse_allocator_settings  # lazy: rare
    from sysbench.core.predict.fit_grid import fit_verdict  # lazy: first frame

    if predicted.room is None:
        return ""
    verdict = fit_verdict(exact, predicted.room, parse_allocator_settings(os.environ))
    words = VERDICT_WORDS[verdict]
    return f"; {words} {predicted.place}"


def prediction_grid(predicted: DevicePrediction, width: int) -> list[Content]:
    """The predicted peak at other batches and contexts; ``▸`` marks this spec's."""
    from sysbench.core.predict.fit_grid import closed_form_fits  # lazy: first frame
    from sysbench.tui.screens.run_device_prediction import peak_grid  # lazy: first frame

    spec, capacity, room = predicted.spec, predicted.capacity_bytes, predicted.room
    batches, contexts, peaks = peak_grid(predicted)
    shown = contexts[: (width - GRID_MARGIN) // GRID_CELL]
    muted = "$foreground 60%"
    head = "".join(f"{context:>{GRID_CELL}}" for context in shown)
    lines = [
        Content.styled("Predicted peak by batch and context", "bold"),
        Content.styled(f"{'':{GRID_MARGIN}}{head}", muted),
    ]
    for batch, row in zip(batches, peaks, strict=True):
        line = Content.styled(f"{batch:>{GRID_MARGIN - 1}} ", muted)
        for context, peak in zip(shown, row, strict=False):
            too_much = room is not None and not closed_form_fits(peak, room)
            text = f"{'✗ ' if too_much else ''}{amount(peak)}"
            is_spec = (batch, context) == (spec.batch, spec.context)
            style = "$error 80%" if too_much else "bold $accent" if is_spec else ""
            line += Content.styled(f"{'▸' + text if is_spec else text:>{GRID_CELL}}", style)
        lines.append(line)
    if capacity is not None and room is not None:
        meaning = "more than" if room.least == capacity else "may not fit in"
        lines.append(Content.styled(f"✗ {meaning} {amount(capacity)}", muted))
    return lines


def flow(parts: Sequence[str], width: int) -> list[str]:
    """Parts joined by dots, broken between parts where a line is full."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _memory_lines(predicted: DevicePrediction, width: int) -> list[Content]:
    prediction, capacity = predicted.prediction, predicted.capacity_bytes
    if predicted.why_unknown:
        return [
            Content.assemble("Predicted peak ", ("n/a", "bold")),
            Content.styled(predicted.why_unknown, "$foreground 60%"),
        ]
    peak = prediction.peak_bytes
    lines = [Content.assemble("Predicted peak ", (amount(peak), "bold $accent"))]
    where = f"highest in {prediction.peak_phase}"
    if capacity:
        where = f"of {amount(capacity)}, {where}"
        style = "$error" if predicted.room and peak > predicted.room.most else "$accent"
        lines.append(_filled(peak / capacity, min(width, WIDEST), style))
    lines.append(Content.styled(where, "$foreground 60%"))
    names = max((len(row.name) for row in prediction.ledger), default=0)
    bars = min(WIDEST, width) - names - FIGURE_WIDTH - 2
    for row in prediction.ledger:
        text = f"{row.name:<{names}}{amount(row.bytes):>{FIGURE_WIDTH}}"
        share = row.bytes / peak if peak else 0.0
        colour = swatch_of(row.name).colour
        lines.append(Content.assemble(text, "  ", (bar(share, max(0, bars)), colour)))
    return lines


def _filled(share: float, width: int, style: str) -> Content:
    """A bar on a faint track; a share above zero has a mark."""
    filled = bar(share, width).rstrip() or "▏"
    track = "·" * (width - len(filled))
    return Content.assemble((filled, style), (track, "$foreground 40%"))


def _verdict(predicted: DevicePrediction) -> Content:
    from sysbench.core.predict.fit_grid import closed_form_fits  # lazy: first frame

    peak, room = predicted.prediction.peak_bytes, predicted.room
    place = "in RAM" if predicted.place == "cpu" else f"on {predicted.place}"
    if predicted.why_unknown:
        return Content("Fits: unknown, the peak is not predicted.")
    if room is None:
        return Content(f"Fits: unknown without the capacity of {predicted.place or 'the device'}.")
    if closed_form_fits(peak, room):
        text = f" {place}: {amount(peak)} of {amount(predicted.capacity_bytes)}."
        return Content.assemble(("✓ Fits", "bold $success"), text)
    if peak <= room.most:
        return Content.assemble(
            ("? May not fit", "bold $warning"),
            f" {place}: driver and fragmentation need part of the last {amount(room.most - peak)}.",
        )
    missing = amount(peak - room.most)
    may_run = (
        "" if predicted.card else " You can still start it; an OOM report shows what did not fit."
    )
    return Content.assemble(
        ("✗ Does not fit", "bold $error"), f" {place}: {missing} missing.{may_run}"
    )
