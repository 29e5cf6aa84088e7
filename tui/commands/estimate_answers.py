"""Answer the questions of `estimate`: cost of a spec, largest fit, table, savings."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.export.text_formats import table_as_markdown, tables_as_csv
from sysbench.core.formatting import DECIMAL_UNITS, format_bytes, parse_size
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.machine.devices import (
    DeviceCapacity,
    cpu_flags,
    device_capacity,
    onednn_instructions,
)
from sysbench.core.machine.peaks import KnownCard, find_card, parse_peak, roof_of, sold_as
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.cache_forms import VLLM_BLOCK, VLLM_SOURCE, LayoutFit, layout_fits
from sysbench.core.predict.closed_form import (
    Prediction,
    predict,
    why_no_workspace,
    why_not_predicted,
)
from sysbench.core.predict.dry_run_client import (
    Estimator,
    ExactPrediction,
    TrainingVariant,
    unsupported_reason,
    why_not_played,
)
from sysbench.core.predict.fit_grid import (
    ANY_CARD,
    Card,
    Fit,
    FitCell,
    available_memory,
    card_elsewhere,
    card_here,
    fit,
    fit_cells,
    parse_axes,
    spec_elsewhere,
    with_value,
)
from sysbench.core.predict.layout_plan import plan_layouts, play_ranks
from sysbench.core.predict.savings import Play, savings_of
from sysbench.core.predict.sizes import CONTEXT_BYTES
from sysbench.core.predict.world_fit import fit_in_world
from sysbench.core.record.environment import Roof
from sysbench.core.runs.kept_rates import measured_facts
from sysbench.core.runs.prediction_errors import this_machine
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World, check_world, parse_division
from sysbench.core.tables.brief import brief_of
from sysbench.core.tables.estimate_tables import (
    fit_table,
    grid_table,
    layouts_table,
    plan_table,
    savings_table,
)
from sysbench.core.tables.table import Table
from sysbench.tui.commands.answers import print_brief, print_chosen
from sysbench.tui.commands.estimate import asks_for_exact
from sysbench.tui.commands.estimate_report import (
    NO_FORM,
    Estimate,
    EstimateAnswer,
    WorldPrediction,
    answer_lines,
    capacity_words,
    fit_remarks,
    fit_sentence,
    no_capacity,
    plan_remarks,
    plan_sentence,
    savings_sentence,
    workspace_remarks,
)
from sysbench.tui.commands.output import page_width, print_json, print_lines, write_text
from sysbench.tui.commands.progress import decoding_progress
from sysbench.tui.commands.spec_arguments import asked_spec
from sysbench.tui.commands.text_lines import prose

CLOSED_FORM = "closed form"
MAX_PLAYERS = 4
"""Most processes that play layouts at the same time, 0.5 GiB each."""
NOT_WITH = {
    "phase": ("fit", "table", "savings", "plan"),
    "world": ("table", "savings"),
    "rank": ("fit", "table", "savings", "plan"),
}
"""Options by name, and those with which they have no meaning."""


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
    is_exact = asks_for_exact(arguments) or spec.is_own or bool(spec.precision_row.recipe)
    # Exact mode without a process: a file names the user model.
    with Estimator() if is_exact and exact is None else nullcontext(exact) as process:
        if not spec.has_model:
            raise SpecError("workload", spec.workload, "transformer or attention: it has no model")
        target = _target(arguments, spec, known)
        spec.precision_row.check_capability(target.card.capability, target.card.name)
        asked = _Question(arguments, spec, target, process if is_exact else None)
        for name, others in NOT_WITH.items():
            value = getattr(arguments, name)
            if value is not None and any(getattr(arguments, other) for other in others):
                options = ", ".join(f"--{other}" for other in others)
                raise SpecError(f"--{name}", value, f"not with {options}")
        if arguments.rank is not None and not arguments.world:
            raise SpecError("--rank", arguments.rank, "only with --world")
        if arguments.block_size is not None and not arguments.fit:
            raise SpecError("--block-size", arguments.block_size, "only with --fit")
        if arguments.fit:
            answered = asked.fit()
        elif arguments.table:
            answered = asked.table()
        elif arguments.plan is not None:
            answered = asked.plan()
        elif arguments.savings:
            answered = asked.savings()
        elif arguments.world:
            answered = asked.of_ranks()
        else:
            answered = asked.one()
        _print(arguments, target, answered)


def _print(arguments: argparse.Namespace, target: Target, answered: EstimateAnswer) -> None:
    tables = answered.tables
    card = {"card": target.card.name} if target.card.name else {}
    missing = {name: answered.document[name] for name in ("missing",) if name in answered.document}
    if arguments.brief:
        document = brief_of(
            answered.subject,
            [answered.sentence, *answered.remarks],
            numbers=answered.document | card,
            tables=tables,
            missing=missing.get("missing"),
            following=answered.remarks,
        )
        print_brief(arguments, document, answer_lines(answered, page_width()))
        return
    if print_chosen(arguments, lambda: tables, card | missing):
        return
    if arguments.json:
        print_json(answered.document | card)
    elif arguments.md:
        write_text("\n".join(map(table_as_markdown, tables)))
    elif arguments.csv:
        write_text(tables_as_csv(tables).decode())
    else:
        notes = (prose(note, page_width(), style="dim") for note in target.notes)
        print_lines(chain(answer_lines(answered, page_width()), *notes))


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


@dataclass(frozen=True)
class _Question:
    """A spec and the device to predict it for; ``exact`` runs the step, else the closed form."""

    arguments: argparse.Namespace
    spec: RunSpec
    target: Target
    exact: Estimator | None

    @property
    def method(self) -> str:
        return "exact: the step on meta tensors" if self.exact else CLOSED_FORM

    def predict(self, spec: RunSpec) -> Prediction:
        capability = self.target.card.capability
        return self.exact.predict(spec, capability) if self.exact else predict(spec, capability)

    def one(self) -> EstimateAnswer:
        return self._estimate().answer()

    def of_ranks(self) -> EstimateAnswer:
        """The rank with the highest peak, beside the others."""
        spec, only = self.spec, self.arguments.rank
        world = World.parse(self.arguments.world)
        if why := unsupported_reason(spec):
            raise SpecError("--world", self.arguments.world, f"not for this spec: {why}")
        check_world(spec, world)
        if only is not None and not 0 <= only < world.size:
            raise SpecError("--rank", only, f"0 to {world.size - 1}")
        with self._players(1 if only is not None else len(world.kinds)) as (play, players):
            ranks = play_ranks(spec, world, play, only, players)
        return self._estimate(WorldPrediction(world, ranks)).answer()

    @contextmanager
    def _players(self, most: int) -> Iterator[tuple[Play, int]]:
        """What plays in the first free one of several processes, and their number."""
        free = SimpleQueue[Estimator | None]()

        def play(spec: RunSpec, variant: TrainingVariant) -> ExactPrediction:
            exact = free.get()
            try:
                return self._predict_variant(spec, variant, exact)
            finally:
                free.put(exact)

        players = min(most, MAX_PLAYERS, len(os.sched_getaffinity(0)))
        with ExitStack() as stack:
            others = [stack.enter_context(Estimator()) for _ in range(1, players)]
            for exact in (self.exact, *others):
                free.put(exact)
            yield play, players

    def _estimate(self, division: WorldPrediction | None = None) -> Estimate:
        spec, card, exact = self.spec, self.target.card, self.exact
        why = (why_not_played(spec) if exact else why_not_predicted(spec)) or ""
        if why and exact:
            raise SpecError("--exact", True, f"not for this spec: {why}")
        roof, why_no_roof = self._roof() if exact else (None, "")
        if spec.compile != "off":
            roof, why_no_roof = None, "the bytes that fused kernels move are not modelled"
        instructions = onednn_instructions(cpu_flags(), os.environ)
        estimate = Estimate(
            spec=spec,
            prediction=self.predict(spec) if division is None else division.worst.prediction,
            why=why,
            capacity_bytes=self.target.capacity_bytes,
            card=card,
            roof=roof,
            why_no_roof=why_no_roof,
            settings=parse_allocator_settings(os.environ),
            why_no_workspace=why_no_workspace(spec, instructions) or "",
            phase=self.arguments.phase or "",
            division=division,
        )
        names = [phase.phase for phase in estimate.exact.phases] if estimate.exact else []
        if estimate.phase and estimate.phase not in names:
            raise SpecError("--phase", estimate.phase, f"one of {', '.join(names)}")
        return estimate

    def _roof(self) -> tuple[Roof | None, str]:
        spec, card, peak = self.spec, self.target.card, self.arguments.peak
        environment: dict[str, Any] = {"device": {"name": card.name}}
        if not card.name:
            environment["device"]["name"] = this_machine(spec.device)
            environment |= measured_facts(spec.device)
        peak_key = spec.precision_row.peak_key
        given = parse_peak(peak) if peak else None
        return roof_of(spec.device, spec.precision, peak_key, environment, given)

    def fit(self) -> EstimateAnswer:
        spec, key, card = self.spec, self.arguments.fit, self.target.card
        block_size = self.arguments.block_size
        if key == "sequences":
            if not spec.has_cache:
                raise SpecError("--fit", key, "batch, for a step without a cache of tokens")
            key = "batch"
        if block_size is not None and (block_size < 1 or spec.step != "decode"):
            raise SpecError("--block-size", block_size, "1 or more, with --fit and step=decode")
        capacity = self._capacity()
        settings = parse_allocator_settings(os.environ)
        room = available_memory(spec, capacity, card)
        if self.arguments.world:
            given = parse_division(self.arguments.world)
            play = self._predict_variant
            fitted = fit_in_world(spec, key, given, capacity, room, settings, play)
            return self._fitted(fitted, [])
        if key == "microbatches":
            raise SpecError("--fit", key, "only with --world")
        guess = None
        if not spec.is_own:
            closed = partial(predict, capability=card.capability)
            fitted = fit(spec, key, capacity, closed, settings=settings, room=room)
            guess = fitted.largest
        if self.exact:
            fitted = fit(spec, key, capacity, self.predict, guess, settings, room)
        blocks = block_size or VLLM_BLOCK
        return self._fitted(fitted, [*layout_fits(spec, fitted, room, card, self.predict, blocks)])

    def _fitted(self, fitted: Fit, layouts: Sequence[LayoutFit]) -> EstimateAnswer:
        spec, key, world = self.spec, fitted.key, self.arguments.world or ""
        is_of_spec = fitted.largest and key != "microbatches"
        parameters = 0
        if self.exact and not world:  # it was predicted for the search
            least = with_value(spec, key, max(fitted.largest, 1))
            parameters = self.exact.predict(least, self.target.card.capability).parameters
        return self._answer(
            msgspec.to_builtins(fitted)
            | {"layouts": msgspec.to_builtins(layouts)}
            | ({"world": world} if world else {}),
            fit_table(fitted),
            *([layouts_table(layouts, key)] if layouts else ()),
            spec=with_value(spec, key, fitted.largest) if is_of_spec else spec,
            parameters=parameters,
            sentence=fit_sentence(fitted, self.target.card, world),
            remarks=[*fit_remarks(spec, fitted, world), *_layout_remarks(spec, fitted, layouts)],
        )

    def table(self) -> EstimateAnswer:
        capacity, axes = self.target.capacity_bytes, parse_axes(self.arguments.table)
        cells = fit_cells(self.spec, axes, capacity, self.predict, self.target.card)
        document = {"capacity_bytes": capacity, "axes": axes, "cells": cells}
        return self._answer(document, grid_table(cells), remarks=self._grid_remarks(cells))

    def _grid_remarks(self, cells: Sequence[FitCell]) -> Iterator[str]:
        for why in dict.fromkeys(cell.why for cell in cells if cell.why):
            yield f"–: {why}"
        capacities = sorted({cell.capacity_bytes for cell in cells if cell.capacity_bytes})
        if len(capacities) == 1:
            yield f"capacity: {capacity_words(capacities[0], self.target.card)}"
        elif not capacities:
            yield no_capacity(self.spec)

    def plan(self) -> EstimateAnswer:
        """Layouts of a number of devices, played on several cores."""
        spec, card, capacity = self.spec, self.target.card, self._capacity()
        world = self.arguments.world
        with decoding_progress() as progress, self._players(MAX_PLAYERS) as (play, players):
            found = plan_layouts(
                spec,
                self.arguments.plan,
                parse_division(world, of_plan=True) if world else {},
                capacity,
                available_memory(spec, capacity, card),
                parse_allocator_settings(os.environ),
                play,
                players,
                lambda done, total: progress.show(Progressed("layouts", done, total)),
            )
        return self._answer(
            msgspec.to_builtins(found),
            plan_table(found),
            sentence=plan_sentence(found, card),
            remarks=plan_remarks(found, spec),
        )

    def _capacity(self) -> int:
        if self.target.capacity_bytes is None:
            raise SpecError(
                "--capacity", None, f"required: the memory of {self.spec.device}, such as 24GiB"
            )
        return self.target.capacity_bytes

    def savings(self) -> EstimateAnswer:
        found = savings_of(self.spec, self.predict, self._predict_variant if self.exact else None)
        return self._answer(
            msgspec.to_builtins(found),
            savings_table(found),
            sentence=savings_sentence(found),
            remarks=found.remarks,
        )

    def _predict_variant(
        self, spec: RunSpec, variant: TrainingVariant, exact: Estimator | None = None
    ) -> ExactPrediction:
        exact = exact or self.exact
        assert exact is not None
        return exact.predict(spec, self.target.card.capability, variant)

    def _answer(
        self,
        document: dict[str, Any],
        *tables: Table,
        spec: RunSpec | None = None,
        parameters: int = 0,
        sentence: str = "",
        remarks: Iterable[str],
    ) -> EstimateAnswer:
        workspaces = workspace_remarks(self.spec, self.target.card)
        return EstimateAnswer(
            spec=spec or self.spec,
            card=self.target.card,
            document=document | {"method": self.method},
            tables=tables,
            parameters=parameters,
            sentence=sentence,
            remarks=[*remarks, *workspaces, f"method: {self.method}"],
        )


def _layout_remarks(spec: RunSpec, fit: Fit, layouts: Sequence[LayoutFit]) -> Iterator[str]:
    """Where the rows of other layouts of the cache come from, or why there are none."""
    if spec.has_cache and fit.key == "batch":
        yield f"batch is the number of sequences, of {spec.context:,} tokens each"
    if not layouts:
        if spec.step == "decode" and fit.key != "layers":
            yield f"layouts of the cache: {NO_FORM}"
        return
    yield (
        "layouts of the cache: closed form, with the margin for fragmentation; a sequence takes "
        "whole blocks, fp8 is a byte an element without its scales"
    )
    if any("vLLM" in row.memory for row in layouts):
        yield (
            f"by vLLM: {VLLM_SOURCE}; less {format_bytes(CONTEXT_BYTES)} for the context of CUDA. "
            "Temporaries are those of this step: vLLM measures its own, and its graphs"
        )
