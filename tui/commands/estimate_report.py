"""A prediction with what it is compared with, and the answers of `estimate` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from sysbench.core.formatting import counted, format_bytes, format_count, percent
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.predict.cache_forms import CacheForm, cache_form, cache_width, embedding_bytes
from sysbench.core.predict.closed_form import Prediction, predict
from sysbench.core.predict.dry_run_client import ExactPrediction, RankPrediction, roof_ms
from sysbench.core.predict.fit_grid import (
    EXPANDABLE,
    FRAGMENTS_BYTES,
    FRAGMENTS_SHARE,
    AvailableMemory,
    Card,
    Fit,
    Verdict,
    available_memory,
    fit_verdict,
    missing_bytes,
    reserved_bytes,
    spare_bytes,
)
from sysbench.core.predict.layout_plan import LayoutPlan
from sysbench.core.predict.savings import Savings
from sysbench.core.record.environment import Roof
from sysbench.core.record.memory import LIBRARY_WORKSPACE
from sysbench.core.runs.prediction_errors import error_note, this_machine
from sysbench.core.spec.models import note_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.tables.context import model_line, settings_line
from sysbench.core.tables.estimate_tables import (
    eager_table,
    fit_words,
    phase_ledger_table,
    predicted_ledger_table,
    predicted_phases_table,
    ranks_table,
    saving_words,
)
from sysbench.core.tables.layer_tables import linear_layers_table
from sysbench.core.tables.table import Table, with_total
from sysbench.core.trace.roofline import bandwidth_ms, bandwidth_words
from sysbench.tui.commands.text_lines import (
    INDENT,
    Line,
    blank,
    indented,
    prose,
    table_lines,
    titled,
)
from sysbench.tui.text import closed_form_error, is_sure, may_fit, nothing_fits

FRAGMENTS = (
    f"includes {percent(FRAGMENTS_SHARE)} of the peak, at least {format_bytes(FRAGMENTS_BYTES)}, "
    "for fragmentation"
)
NCCL_BUFFERS = "NCCL's buffers"
NCCL_UNKNOWN = (
    "unknown: outside of torch's allocator, by channels and peers that it chooses (NCCL_BUFFSIZE)"
)
STAGES = "reserved memory of a pipeline was within 2 % of that of ranks on null GPUs"
RING = (
    "ring attention: torch's, with flash attention in 16 bits and the memory-efficient kernel in "
    "32; it was compared with real ranks on the CPU only"
)
RING_ON_CPU = (
    "ring attention: torch's context_parallel has no kernel for the CPU, where it refuses to run; "
    "played is its ring around the CPU's flash attention"
)
EXPERTS = (
    "experts: each rank of ep gets as many tokens, or the first one skew times as many; they are "
    "sent as torchtitan does, which was compared with real ranks on the CPU only"
)
NO_FORM = "no closed form for this kind of model; the row `kv cache` counts its tensors"
NO_DRY_RUN = "it depends on the order of allocations: use --exact"
COMPILED_NOT_RESERVED = "not modelled for compiled code, which reuses its own buffers"


@dataclass(frozen=True, kw_only=True)
class EstimateAnswer:
    """An answer of `estimate`.

    Attributes:
        spec, card: For the headline.
        document: For ``--json``.
        sentence: The answer in words, or "".
        remarks: Limits and methods, one sentence each.
        prediction: Of the spec, for its parameters and work.
        parameters: Number of them where there is no prediction.
        rank: The rank that does this work; None for one device.
    """

    spec: RunSpec
    card: Card
    document: dict[str, Any]
    tables: Sequence[Table]
    sentence: str = ""
    remarks: Sequence[str] = ()
    prediction: Prediction | None = None
    parameters: int = 0
    rank: int | None = None

    @property
    def subject(self) -> str:
        """The model in one line."""
        parameters = self.prediction.parameters if self.prediction else self.parameters
        settings = msgspec.to_builtins(self.spec)
        return model_line(settings, parameters or self.spec.dimensions.parameters)


def answer_lines(answer: EstimateAnswer, width: int) -> Iterator[Line]:
    spec, card = answer.spec, answer.card
    settings = msgspec.to_builtins(spec)
    predicted = answer.prediction
    yield from prose(answer.subject, width, hang=2, style="bold")
    if note := note_of(spec.model):
        yield from prose(f"{spec.model}: {note}", width, hang=2, style="dim")
    device = f"{card.name} (--card)" if card.name else spec.device
    yield from prose(f"{settings_line(settings)} · {device}", width, hang=2)
    if predicted:
        works = _flops(predicted).items()
        lines = [[(f"  {name:<12}{format_count(count)}FLOP", "")] for name, count in works]
        if isinstance(predicted, ExactPrediction) and predicted.uncounted:
            names = ", ".join(predicted.uncounted)
            lines += indented(prose(f"not counted: {names}", width - INDENT, hang=2))
        of_rank = "" if answer.rank is None else f" of rank {answer.rank}"
        yield from titled(f"Work per step{of_rank}", lines)
    for table in answer.tables:
        is_sum = table.name in ("ledger", "phase_ledger")
        shown = with_total(table, "name", "peak", table.columns[1:]) if is_sum else table
        if table.rows:
            yield from titled(table.title, table_lines(shown, width, total=is_sum))
    yield blank()
    yield from prose(answer.sentence, width, style="bold")
    for text in answer.remarks:
        yield from prose(text, width, style="dim")


@dataclass(frozen=True)
class WorldPrediction:
    """The ranks of a world that were played."""

    world: World
    ranks: Sequence[RankPrediction]

    @property
    def worst(self) -> RankPrediction:
        return max(self.ranks, key=lambda one: one.needed_bytes)

    def remarks(self, spec: RunSpec) -> Iterator[str]:
        """What the rows stand for, and what they leave out."""
        if spec.is_own or not self.world.divides(spec.dimensions):
            yield (
                "played: the first rank of each stage; where a size is not divided evenly, the "
                "others hold less"
            )
        if self.world.cp > 1:
            yield RING if spec.on_cuda else RING_ON_CPU
        if self.world.ep > 1:
            yield EXPERTS
        if not spec.on_cuda:
            yield "not included: copies that the library of collectives makes"
            return
        yield f"{NCCL_BUFFERS}: {NCCL_UNKNOWN}; they are in no sum and in no answer here"
        if self.world.pp > 1:
            yield STAGES

    @property
    def document(self) -> dict[str, Any]:
        return {
            "world": self.world,
            "ranks": [
                {
                    "rank": one.rank,
                    "alike": one.alike,
                    "coordinates": one.coordinates,
                    "peak_bytes": one.peak_bytes,
                    "peak_phase": one.prediction.peak_phase,
                    "allocated_bytes": one.allocated_bytes,
                    "reserved_bytes": one.reserved_bytes,
                    "ledger": one.prediction.ledger,
                }
                for one in self.ranks
            ],
            "worst_rank": self.worst.rank,
        }


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A prediction, with the capacity and roof to compare it with.

    Attributes:
        why: Why the memory is not predicted; "" if it is.
        capacity_bytes: Memory to fit into; None if unknown.
        settings: Settings of CUDA's allocator in this environment.
        roof: For the roofline time of exact mode; None with a reason in ``why_no_roof``.
        why_no_workspace: Why a part of the peak on this CPU is not predicted.
        phase: Whose ledger to show; empty for that of the peak.
        division: The ranks, if ``prediction`` is that of one of them.
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
    phase: str = ""
    division: WorldPrediction | None = None

    @property
    def room(self) -> AvailableMemory | None:
        """Memory available to the step; None if unknown."""
        if self.capacity_bytes is None:
            return None
        return available_memory(self.spec, self.capacity_bytes, self.card)

    @property
    def exact(self) -> ExactPrediction | None:
        return self.prediction if isinstance(self.prediction, ExactPrediction) else None

    @property
    def has_closed_form(self) -> bool:
        spec = self.spec
        is_eager = spec.compile == "off"
        return is_eager and not (spec.is_own or spec.precision_row.recipe or self.division)

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
        if self.roof is None or self.exact is None:
            return {}
        times = {phase.phase: roof_ms(phase, self.roof) for phase in self.exact.phases}
        return {phase: time for phase, time in times.items() if time is not None}

    @cached_property
    def cache_form(self) -> CacheForm | None:
        return cache_form(self.spec)

    @cached_property
    def serving(self) -> dict[str, Any]:
        """Bytes of the cache, and what a token reads; null where no form is known."""
        spec, form, roof = self.spec, self.cache_form, self.roof
        size = None if form is None else form.bytes(spec.context, spec.batch, cache_width(spec))
        weights = self.prediction.parameter_bytes - embedding_bytes(spec)
        bandwidth = None if roof is None or spec.step != "decode" else roof.bandwidth
        return {
            "cache_bytes": size,
            "bytes_per_token": form and form.bytes_per_token(spec.context, cache_width(spec)),
            "formula": form and form.words,
            "weight_bytes": weights,
            "bandwidth_ms": bandwidth_ms(weights, size, bandwidth) if size and bandwidth else None,
        }

    @cached_property
    def missing(self) -> dict[str, str]:
        """Reasons for null values, by key."""
        reasons = {}
        if self.why:
            reasons["peak_bytes"] = self.why
        elif self.why_no_workspace:
            reasons[f"ledger.{LIBRARY_WORKSPACE}"] = self.why_no_workspace
        if self.reserved_bytes is None and self.spec.device != "cpu":
            is_compiled = self.exact is not None and self.exact.eager is not None
            why = COMPILED_NOT_RESERVED if is_compiled else self.why or NO_DRY_RUN
            reasons["reserved_bytes"] = why
        if self.division is not None and self.spec.on_cuda:
            reasons[f"ledger.{NCCL_BUFFERS}"] = NCCL_UNKNOWN
        if self.capacity_bytes is None:
            reasons["capacity_bytes"] = no_capacity(self.spec)
        if self.spec.has_cache and self.cache_form is None:
            reasons["decode.cache_bytes"] = NO_FORM
        if self.exact and not self.roof_times:
            reasons["roofline_ms"] = self.why_no_roof or (
                "no bandwidth is known: give both with --peak TFLOPS,GB/S"
            )
        return reasons

    def answer(self) -> EstimateAnswer:
        unknown = (NCCL_BUFFERS,) if self.division is not None and self.spec.on_cuda else ()
        tables = [] if self.why else [predicted_ledger_table(self.prediction, unknown)]
        if self.exact:
            chosen = (phase for phase in self.exact.phases if phase.phase == self.phase)
            tables = [*map(phase_ledger_table, chosen)] or tables
            tables.append(predicted_phases_table(self.exact, self.roof_times))
            if self.exact.eager is not None:
                tables.append(eager_table(self.exact, self.exact.eager))
            if self.exact.linear_layers:
                tables.append(
                    linear_layers_table(self.exact.linear_layers, self.spec.precision_row)
                )
        if self.division is not None:
            tables.insert(0, ranks_table(self.division.ranks, self.division.world))
        return EstimateAnswer(
            spec=self.spec,
            card=self.card,
            document=as_json(self),
            tables=tables,
            sentence=_sentence(self),
            remarks=[*_remarks(self)],
            prediction=self.prediction,
            rank=None if self.division is None else self.division.worst.rank,
        )


def no_capacity(spec: RunSpec) -> str:
    return f"{spec.device} does not report its memory: give it with --capacity"


def as_json(estimate: Estimate) -> dict[str, Any]:
    """Return the JSON document; an unknown value is null, with the reason under ``missing``."""
    prediction, why, room = estimate.prediction, estimate.why, estimate.room
    values: dict[str, Any] = {
        "parameters": prediction.parameters,
        "flops": _flops(prediction),
        "peak_bytes": None if why else prediction.peak_bytes,
        "peak_phase": None if why else prediction.peak_phase,
        "ledger": [] if why else prediction.ledger,
        "capacity_bytes": estimate.capacity_bytes,
        "fits": estimate.fits,
        "method": prediction.method,
    }
    if estimate.spec.device != "cpu":
        values |= {
            "compute_capability": estimate.card.capability,
            "reserved_bytes": estimate.reserved_bytes,
            "room_bytes": None if room is None else room.least,
            "doubt_bytes": None if room is None else room.uncertainty_bytes,
            "verdict": estimate.verdict,
            "fits_expandable": estimate.fits_expandable,
        }
    if estimate.exact:
        values |= _exact_json(estimate, estimate.exact)
    if estimate.spec.has_cache:
        values["decode"] = estimate.serving
    if estimate.division is not None:
        values |= estimate.division.document
    return values | ({"missing": estimate.missing} if estimate.missing else {})


def _exact_json(estimate: Estimate, exact: ExactPrediction) -> dict[str, Any]:
    times, peak = estimate.roof_times, exact.held
    phases = [
        msgspec.structs.asdict(phase) | {"roofline_ms": times.get(phase.phase)}
        for phase in exact.phases
    ]
    for phase in phases:
        del phase["products"]
    return {
        "peak_place": exact.peak_place,
        "allocated_bytes": None if peak is None else peak.allocated_bytes,
        "first_step_bytes": None if peak is None else peak.first_step_bytes,
        "block_ledger": exact.block_ledger,
        "uncounted_operators": exact.uncounted,
        "saved_activation_bytes": exact.saved_activation_bytes,
        "eager": exact.eager,
        "closed_form_peak_bytes": (
            estimate.closed_form.peak_bytes if estimate.has_closed_form else None
        ),
        "roofline_ms": sum(times.values()) if times else None,
        "phases": phases,
        "limits": exact.limits,
        "sent": exact.sent,
        "linear_layers": exact.linear_layers,
        "seconds": exact.seconds,
        "import_seconds": exact.import_seconds,
    }


def _flops(prediction: Prediction) -> dict[str, int]:
    return {
        "forward": prediction.forward_flops,
        "backward": prediction.backward_flops,
        "step": prediction.step_flops,
    }


def _sentence(estimate: Estimate) -> str:
    capacity, room, prediction = estimate.capacity_bytes, estimate.room, estimate.prediction
    if estimate.why:
        return f"Peak memory: n/a, {estimate.why}."
    if capacity is None or room is None or estimate.verdict is None:
        return f"Unknown whether it fits: {estimate.missing['capacity_bytes']}."
    spare, need = spare_bytes(prediction, room), estimate.reserved_bytes or prediction.peak_bytes
    is_tight = estimate.verdict == "fits" and spare < 0
    if is_tight and estimate.exact and estimate.exact.held:
        need = estimate.exact.held.allocated_bytes
    share = percent(need / capacity)
    part = f"{share} of {capacity_words(capacity, estimate.card)}"
    if estimate.division is not None:
        part = f"rank {estimate.division.worst.rank} needs {part}"
        part += f" beside {NCCL_BUFFERS}" if estimate.spec.on_cuda else ""
    if is_tight:
        return f"Fits: {part}; the allocator releases {format_bytes(-spare)} of its cache for it."
    if estimate.verdict == "fits":
        return f"Fits: {part}, {format_bytes(spare)} to spare."
    missing = format_bytes(missing_bytes(prediction, room, estimate.settings))
    if estimate.verdict == "close":
        return f"May not fit: {part}, it may lack {missing}."
    return f"Does NOT fit: {part}, it needs {_at_least(estimate.reserved_bytes)}{missing} more."


def _at_least(reserved_bytes: int | None) -> str:
    """The simulated allocator stops at the first request that it refuses."""
    return "" if reserved_bytes is None else "at least "


def capacity_words(capacity_bytes: int, card: Card) -> str:
    size = format_bytes(capacity_bytes)
    return f"{size} ({card.name})" if card.name else size


def _remarks(estimate: Estimate) -> Iterator[str]:
    spec, exact = estimate.spec, estimate.exact
    yield f"method: {estimate.prediction.method}"
    if estimate.division is not None:
        yield from estimate.division.remarks(spec)
    if exact:
        yield from exact.limits
        yield from _first_step(exact)
        others = ", ".join(phase.phase for phase in exact.phases if phase.phase != exact.peak_phase)
        if others and not estimate.phase:
            yield f"--phase NAME shows the ledger of another phase: {others}"
    if spec.has_cache:
        yield from _cache_remarks(estimate)
    if spec.device != "cpu" and not estimate.why:
        yield from _room_remarks(estimate)
    if estimate.why_no_workspace:
        yield f"{LIBRARY_WORKSPACE}: {estimate.why_no_workspace}"
    if exact:
        if estimate.has_closed_form:
            closed = estimate.closed_form
            error = closed_form_error(closed, exact)
            yield f"closed form: {format_bytes(closed.peak_bytes)} ({error})"
        if times := estimate.roof_times:
            yield f"roofline: {sum(times.values()):.3g} ms, if every operand comes from memory"
        else:
            yield f"roofline time: n/a, {estimate.missing['roofline_ms']}"
        yield (
            f"estimated in {exact.seconds:.2f} s, after {exact.import_seconds:.2f} s "
            "for importing torch"
        )
    if not estimate.card.name and (past := error_note(this_machine(spec.device), spec)):
        yield past


def _cache_remarks(estimate: Estimate) -> Iterator[str]:
    spec, form, values = estimate.spec, estimate.cache_form, estimate.serving
    if form is None:
        yield f"kv cache: {estimate.missing['decode.cache_bytes']}"
    else:
        size, grows = format_bytes(values["cache_bytes"]), format_bytes(values["bytes_per_token"])
        yield (
            f"kv cache: {size} = {spec.batch} sequences × {form.words}, for {spec.context:,} "
            f"tokens, {cache_width(spec)} bytes an element; the last of them adds {grows} each"
        )
    if spec.step != "decode" or form is None:
        return
    read = bandwidth_words(values["weight_bytes"], values["cache_bytes"])
    time = values["bandwidth_ms"]
    least = "n/a, give --peak TFLOPS,GB/S with --exact" if time is None else f"{time:.3g} ms"
    yield (
        f"a token of each sequence reads {read}: at least {least} by the bandwidth; its share of "
        "the bandwidth is that over the measured time"
    )


def _first_step(exact: ExactPrediction) -> Iterator[str]:
    """By how much later steps exceed the first, which makes the state in its optimizer phase."""
    names = [phase.phase for phase in exact.phases]
    if "optimizer" not in names:
        return
    made = names.index("optimizer")
    state_of = {
        phase.phase: sum(row.bytes for row in phase.ledger if row.name == "optimizer state")
        for phase in exact.phases[:made]
    }
    first = max(phase.peak_bytes - state_of.get(phase.phase, 0) for phase in exact.phases)
    if first < exact.peak_bytes:
        yield (
            f"the first step peaks at {format_bytes(first)}, later ones at "
            f"{format_bytes(exact.peak_bytes - first)} more: optimizer state"
        )


def _room_remarks(estimate: Estimate) -> Iterator[str]:
    spec, room = estimate.spec, estimate.room
    if estimate.exact and (peak := estimate.exact.held) is not None:
        yield (
            f"reserved without a limit: {format_bytes(peak.reserved_bytes)}, of which "
            f"{format_bytes(peak.allocated_bytes)} allocated in blocks for "
            f"{format_bytes(peak.requested_bytes)} requested"
        )
    yield from workspace_remarks(spec, estimate.card)
    if room is None:
        return
    yield f"usable: {_range(room.least, room.uncertainty_bytes)} ({_unusable(spec)})"
    if estimate.reserved_bytes is None:
        simulates = estimate.division is None and not estimate.exact
        yield FRAGMENTS + ("; --exact simulates the allocator" if simulates else "")
    if estimate.fits_expandable:
        yield "it fits with PYTORCH_ALLOC_CONF=expandable_segments:True"


def fit_sentence(fit: Fit, card: Card, world: str = "") -> str:
    """The largest value, for the fullest rank of a world if there is one."""
    capacity = capacity_words(fit.capacity_bytes, card) + (world and f" with {world}")
    if not fit.largest:
        return f"Nothing {nothing_fits(fit)} in {capacity}: {_lacks(fit)}."
    largest = f"The largest {fit_words(fit.key)} that fits in {capacity} is {fit.largest:,}"
    return f"{largest}; {_lacks(fit)}."


def plan_sentence(found: LayoutPlan, card: Card) -> str:
    """How many layouts fit, and which has the most headroom."""
    capacity, count = capacity_words(found.capacity_bytes, card), found.count("fits")
    first = found.layouts[0] if found.layouts else None
    if first is None:
        return f"No layout of {found.devices:,} devices divides this step."
    if first.verdict != "fits":
        least = format_bytes(-first.headroom_bytes)
        may = "may lack" if first.verdict == "close" else "lacks"
        return f"No layout is sure to fit in {capacity}: {first.name} {may} {least}."
    verb = "fits" if count == 1 else "fit"
    headroom = format_bytes(abs(first.headroom_bytes))
    return f"{count:,} of {counted(len(found.layouts), 'layout')} {verb} in {capacity}. " + (
        f"{first.name} leaves the most free: {headroom}."
        if first.headroom_bytes >= 0
        else f"For {first.name} the allocator releases {headroom} of its cache."
    )


def plan_remarks(found: LayoutPlan, spec: RunSpec) -> Iterator[str]:
    yield f"the batch of each dp rank is {spec.batch}: a layout with less dp has fewer samples"
    for reason, count in found.refused.items():
        yield f"{counted(count, 'layout')} not played: {reason}"
    if found.ruled_out:
        yield (
            f"{counted(found.ruled_out, 'layout')} not played: weights, optimizer state and saved "
            "activations alone do not fit"
        )
    yield f"{counted(found.plays, 'rank')} played in {found.seconds:.0f} s"
    yield (
        "layouts: DDP, FSDP or HSDP over nodes of 8, tensor parallelism, and 1F1B with "
        "microbatches=pp, played on the first, second and last stage; --world "
        "schedule=any,reshard=any tries more, and other keys set one"
    )
    if spec.on_cuda:
        yield f"{NCCL_BUFFERS}: {NCCL_UNKNOWN}; they are in no sum and in no answer here"


def _lacks(fit: Fit) -> str:
    if fit.next is None or fit.over_bytes is None:
        return f"the spec allows no larger {fit_words(fit.key)}"
    following, missing = f"{fit.key} {fit.next:,}", format_bytes(fit.over_bytes)
    if is_sure(fit):
        return f"{following} needs {_at_least(fit.reserved_bytes)}{missing} more"
    return f"{following} may lack {missing}"


def fit_remarks(spec: RunSpec, fit: Fit, world: str = "") -> Iterator[str]:
    """Limits of the answer, a sentence each."""
    if fit.smallest is not None:
        parts = counted(spec.batch // fit.smallest, "sample")
        yield f"the smallest that fits is {fit.smallest}, micro-batches of {parts}"
    if not fit.largest and not world:
        yield "use --savings to see what single changes would save"
    if spec.device == "cpu":
        return
    usable = _range(fit.room_bytes, fit.doubt_bytes)
    yield f"usable: {usable} of {format_bytes(fit.capacity_bytes)} ({_unusable(spec)})"
    if may_fit(fit):
        yield may_fit(fit)
    if world:
        yield f"{NCCL_BUFFERS}: {NCCL_UNKNOWN}; they are in no answer here"
    if "pp=" in world:
        yield STAGES
    if fit.reserved_bytes is None and not world:
        yield f"{FRAGMENTS}; --exact simulates the allocator"
    elif fit.reserved_bytes is not None:
        reserved = format_bytes(fit.reserved_bytes)
        yield f"reserved on a larger card: {reserved} at {fit.key} {fit.largest:,}"
    if fit.expandable_largest:
        yield (
            f"largest with PYTORCH_ALLOC_CONF=expandable_segments:True: {fit.expandable_largest:,}"
        )


def _range(least: int, uncertainty: int) -> str:
    return f"{format_bytes(least)} to {format_bytes(least + uncertainty)}"


def _unusable(spec: RunSpec) -> str:
    if spec.memory_limit:
        return "the limit applies to the allocator only"
    return "driver and context take the rest"


def workspace_remarks(spec: RunSpec, card: Card) -> Iterator[str]:
    if spec.on_cuda and card.capability is None:
        yield (
            "cuBLAS workspaces are those of compute capability 9.0, the largest; set --capability "
            "for another"
        )


def savings_sentence(savings: Savings) -> str:
    peak = format_bytes(savings.peak_bytes)
    if not savings.savings:
        return f"No single change that was tried reduces the peak of {peak}."
    most = savings.savings[0]
    saved = format_bytes(most.saved_bytes)
    return f"{saving_words(most)} saves the most, {saved} of {peak}; its cost: {most.price}."
