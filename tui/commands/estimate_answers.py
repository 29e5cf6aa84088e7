"""Answer the questions of `estimate`: cost of a spec, largest fit, table, savings."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.export.text_formats import table_as_csv, table_as_markdown, tables_as_tidy_csv
from sysbench.core.formatting import DECIMAL_UNITS, format_bytes, parse_size
from sysbench.core.machine.cards import KnownCard, find_card, sold_as
from sysbench.core.machine.devices import DeviceCapacity, device_capacity
from sysbench.core.machine.instructions import cpu_flags, onednn_instructions
from sysbench.core.machine.peaks import parse_peak, roof_of
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.closed_form import predict, why_no_workspace, why_not_predicted
from sysbench.core.predict.dry_run_client import (
    Estimator,
    ExactPrediction,
    TrainingVariant,
    unsupported_reason,
)
from sysbench.core.predict.fit_grid import (
    ANY_CARD,
    Card,
    Predict,
    available_memory,
    card_elsewhere,
    card_here,
    fit,
    fit_cells,
    parse_axes,
    spec_elsewhere,
)
from sysbench.core.predict.savings import Play, savings_of
from sysbench.core.record.environment import Roof
from sysbench.core.runs.kept_rates import measured_facts
from sysbench.core.runs.prediction_errors import this_machine
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.estimate_tables import fit_table, grid_table, savings_table
from sysbench.core.tables.table import Table
from sysbench.tui.commands.estimate_report import (
    Estimate,
    estimate_lines,
    estimate_tables,
    fit_lines,
    grid_lines,
    savings_lines,
)
from sysbench.tui.commands.layout import Line, prose
from sysbench.tui.commands.output import page_width, print_json, print_lines, write_text
from sysbench.tui.commands.spec_arguments import asked_spec

CLOSED_FORM = "closed form"


@dataclass(frozen=True)
class Target:
    """The device to predict for.

    Attributes:
        capacity_bytes: Memory to fit into; None if unknown.
        notes: Remarks on the options that chose it.
    """

    capacity_bytes: int | None
    card: Card = ANY_CARD
    notes: tuple[str, ...] = ()


def answer(arguments: argparse.Namespace, exact: Estimator | None) -> None:
    """Print the answer, by exact mode or the closed form.

    Args:
        exact: Process of exact mode, if the arguments ask for it.

    Raises:
        SpecError: Naming the key or the option at fault.
        WorkerFailed: The dry run failed.
    """
    spec = asked_spec(arguments)
    known = None if arguments.card is None else find_card(arguments.card)
    if known is not None:
        spec = spec_elsewhere(spec, known)
    spec = resolve(spec) if spec.device == "auto" else locate(spec)
    if not spec.is_own and not arguments.exact:
        _answer(arguments, spec, None, known)
    elif exact is None:  # a file names the user model
        with Estimator() as exact:
            _answer(arguments, spec, exact, known)
    else:
        _answer(arguments, spec, exact, known)


def _answer(
    arguments: argparse.Namespace, spec: RunSpec, exact: Estimator | None, known: KnownCard | None
) -> None:
    if not spec.has_model:
        raise SpecError("workload", spec.workload, "transformer or attention: it has no model")
    target = _target(arguments, spec, known)
    capability = target.card.capability
    predict_one: Predict = partial(exact.predict if exact else predict, capability=capability)
    if arguments.fit:
        _fit(arguments, spec, target, predict_one)
    elif arguments.table:
        _table(arguments, spec, target, predict_one)
    elif arguments.savings:
        dry_run = None if exact is None else partial(_predict_variant, exact, capability)
        _savings(arguments, spec, target, predict_one, dry_run)
    else:
        _one(arguments, spec, target, exact)


def _target(arguments: argparse.Namespace, spec: RunSpec, known: KnownCard | None) -> Target:
    capability = _capability(arguments)
    if known is not None:
        if capability is not None:
            raise SpecError("--capability", capability, f"not with --card: {known.key} has its own")
        return Target(spec.memory_limit or known.memory_bytes, card_elsewhere(known))
    if arguments.capacity is not None:
        capacity, notes = _capacity(arguments.capacity), _capacity_notes(arguments, spec)
        return Target(capacity, Card(capability=capability), tuple(notes))
    # Opening NVML can take a second.
    is_known = spec.memory_limit and capability
    here = DeviceCapacity(None) if is_known else device_capacity(spec.device)
    return Target(
        spec.memory_limit or here.capacity_bytes, card_here(capability or here.capability)
    )


def _capacity(text: str) -> int:
    try:
        capacity = parse_size(text)
    except ValueError as error:
        raise SpecError("--capacity", text, str(error)) from None
    if capacity < 1:
        raise SpecError("--capacity", text, "more than 0, such as 24GiB")
    return capacity


def _capacity_notes(arguments: argparse.Namespace, spec: RunSpec) -> Iterator[str]:
    """Explain the size of ``--capacity`` where it may be ambiguous."""
    text: str = arguments.capacity
    capacity = _capacity(text)
    if text.strip()[-2:].upper() in DECIMAL_UNITS:
        cards = [f"{card.key} {format_bytes(card.memory_bytes)}" for card in sold_as(capacity)]
        more = (
            f"; cards sold with this size have more, see --card: {', '.join(cards)}"
            if cards
            else ""
        )
        yield f"{text.strip()} means {capacity:,} bytes, {format_bytes(capacity)}{more}"
    if spec.device == "cpu":
        yield "predicted for the CPU; for another machine's GPU use --card or device=cuda"


def _capability(arguments: argparse.Namespace) -> str | None:
    text: str | None = arguments.capability
    if text is not None and not re.fullmatch(r"\d+\.\d", text):
        raise SpecError("--capability", text, "a compute capability, such as 8.0")
    return text


def _one(
    arguments: argparse.Namespace, spec: RunSpec, target: Target, exact: Estimator | None
) -> None:
    why = (why_not_predicted(spec) if exact is None else unsupported_reason(spec)) or ""
    if why and exact is not None:
        raise SpecError("--exact", True, f"not for this spec: {why}")
    roof, why_no_roof = (None, "") if exact is None else _roof(arguments, spec, target.card)
    estimate = Estimate(
        spec=spec,
        prediction=(predict if exact is None else exact.predict)(spec, target.card.capability),
        why=why,
        capacity_bytes=target.capacity_bytes,
        card=target.card,
        roof=roof,
        why_no_roof=why_no_roof,
        settings=parse_allocator_settings(os.environ),
        why_no_workspace=why_no_workspace(spec, onednn_instructions(cpu_flags(), os.environ)) or "",
    )
    lines = estimate_lines(estimate, page_width())
    _print(arguments, target, as_json(estimate), estimate_tables(estimate), lines)


def _fit(
    arguments: argparse.Namespace, spec: RunSpec, target: Target, predict_one: Predict
) -> None:
    capacity = target.capacity_bytes
    if capacity is None:
        raise SpecError("--capacity", None, f"required: the memory of {spec.device}, such as 24GiB")
    settings = parse_allocator_settings(os.environ)
    room = available_memory(spec, capacity, target.card)
    guess = None
    if not spec.is_own:
        closed = partial(predict, capability=target.card.capability)
        fitted = fit(spec, arguments.fit, capacity, closed, settings=settings, room=room)
        guess = fitted.largest
    if spec.is_own or arguments.exact:
        fitted = fit(spec, arguments.fit, capacity, predict_one, guess, settings, room)
    method = _method(arguments, spec)
    lines = fit_lines(spec, fitted, target.card, method, page_width())
    document = msgspec.to_builtins(fitted) | {"method": method}
    _print(arguments, target, document, [fit_table(fitted)], lines)


def _table(
    arguments: argparse.Namespace, spec: RunSpec, target: Target, predict_one: Predict
) -> None:
    capacity, axes = target.capacity_bytes, parse_axes(arguments.table)
    cells = fit_cells(spec, axes, capacity, predict_one, target.card)
    method = _method(arguments, spec)
    document: dict[str, Any] = {"capacity_bytes": capacity, "axes": axes, "cells": cells}
    document["method"] = method
    lines = grid_lines(spec, cells, target.card, method, page_width())
    _print(arguments, target, document, [grid_table(cells)], lines)


def _savings(
    arguments: argparse.Namespace,
    spec: RunSpec,
    target: Target,
    predict_one: Predict,
    dry_run: Play | None,
) -> None:
    savings = savings_of(spec, predict_one, dry_run)
    method = _method(arguments, spec)
    lines = savings_lines(spec, savings, target.card, method, page_width())
    document = msgspec.to_builtins(savings) | {"method": method}
    _print(arguments, target, document, [savings_table(savings)], lines)


def _predict_variant(
    exact: Estimator, capability: str | None, spec: RunSpec, variant: TrainingVariant
) -> ExactPrediction:
    return exact.predict(spec, capability, variant)


def _print(
    arguments: argparse.Namespace,
    target: Target,
    document: dict[str, Any],
    tables: Sequence[Table],
    lines: Iterator[Line],
) -> None:
    if arguments.json:
        print_json(document | ({"card": target.card.name} if target.card.name else {}))
    elif arguments.md:
        write_text("\n".join(map(table_as_markdown, tables)))
    elif arguments.csv:
        only = len(tables) == 1
        write_text((table_as_csv(tables[0]) if only else tables_as_tidy_csv(tables)).decode())
    else:
        notes = (prose(note, page_width(), style="dim") for note in target.notes)
        print_lines(chain(lines, *notes))


def _method(arguments: argparse.Namespace, spec: RunSpec) -> str:
    is_exact = arguments.exact or spec.is_own
    return "exact: the step on meta tensors" if is_exact else CLOSED_FORM


def _roof(arguments: argparse.Namespace, spec: RunSpec, card: Card) -> tuple[Roof | None, str]:
    peak = parse_peak(arguments.peak) if arguments.peak else None
    environment: dict[str, Any] = {"device": {"name": card.name}}
    if not card.name:
        environment["device"]["name"] = this_machine(spec.device)
        environment |= measured_facts(spec.device)
    peak_key = spec.precision_row.peak_key
    return roof_of(spec.device, spec.precision, peak_key, environment, peak)


def as_json(estimate: Estimate) -> dict[str, Any]:
    """Return the JSON document; an unknown value is null, with the reason under ``missing``."""
    prediction, why = estimate.prediction, estimate.why
    values: dict[str, Any] = {
        "parameters": prediction.parameters,
        "flops": {
            "forward": prediction.forward_flops,
            "backward": prediction.backward_flops,
            "step": prediction.step_flops,
        },
        "peak_bytes": None if why else prediction.peak_bytes,
        "peak_phase": None if why else prediction.peak_phase,
        "ledger": [] if why else prediction.ledger,
        "capacity_bytes": estimate.capacity_bytes,
        "fits": estimate.fits,
        "method": prediction.method,
    }
    if estimate.spec.device != "cpu":
        values |= _allocator_json(estimate)
    if isinstance(prediction, ExactPrediction):
        values |= _exact_json(estimate, prediction)
    missing = estimate.missing()
    return values | {"missing": missing} if missing else values


def _allocator_json(estimate: Estimate) -> dict[str, Any]:
    room = estimate.room
    return {
        "compute_capability": estimate.card.capability,
        "reserved_bytes": estimate.reserved_bytes,
        "room_bytes": None if room is None else room.least,
        "doubt_bytes": None if room is None else room.uncertainty_bytes,
        "verdict": estimate.verdict,
        "fits_expandable": estimate.fits_expandable,
    }


def _exact_json(estimate: Estimate, prediction: ExactPrediction) -> dict[str, Any]:
    times = estimate.roof_times
    peak = prediction.held
    return {
        "peak_place": prediction.peak_place,
        "allocated_bytes": None if peak is None else peak.allocated_bytes,
        "first_step_bytes": None if peak is None else peak.first_step_bytes,
        "block_ledger": prediction.block_ledger,
        "saved_activation_bytes": prediction.saved_activation_bytes,
        "closed_form_peak_bytes": (
            None if estimate.spec.is_own else estimate.closed_form.peak_bytes
        ),
        "roofline_ms": sum(times.values()) if times else None,
        "phases": [
            {
                "phase": phase.phase,
                "peak_bytes": phase.peak_bytes,
                "block_bytes": phase.block_bytes,
                "place": phase.place,
                "ledger": phase.ledger,
                "flops": phase.flops,
                "moved_bytes": phase.moved_bytes,
                "roofline_ms": times.get(phase.phase),
            }
            for phase in prediction.phases
        ],
        "seconds": prediction.seconds,
        "import_seconds": prediction.import_seconds,
    }
