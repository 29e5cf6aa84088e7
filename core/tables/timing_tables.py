"""Timing, compilation and telemetry of a record as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from sysbench.core.compare.rounds import MIN_FOR_INTERVAL, middle
from sysbench.core.compare.statistics import ON_REQUEST, stop_words
from sysbench.core.formatting import counted, format_bytes, format_count, percent
from sysbench.core.record.record import Round, Spread, Telemetry, Timing
from sysbench.core.tables.table import QUANTITY, Cell, Column, Table, facts, fields_of, tabulate

LOG_FROM = 8.0
"""Ratio of an axis's ends from which it is logarithmic: three doublings."""
DIGITS = 4
COUNT_FROM = 1e6
"""Places on the axis from this value on are written as counts: ``969 M`` parameters."""
_STEPS = (1, 2, 5)

Point = tuple[float, float]


class Series(msgspec.Struct, frozen=True):
    """One line. Points ascend along the axis; y is None where there is no value: a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def known(self) -> list[Point]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def pieces(self) -> list[list[Point]]:
        """Neighbours that all have values; a gap is never bridged."""
        pieces: list[list[Point]] = [[]]
        for x, y in self.points:
            if y is None:
                pieces.append([])
            else:
                pieces[-1].append((x, y))
        return [piece for piece in pieces if piece]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one quantity over one axis.

    Attributes:
        name: Of the quantity, with its unit.
        title: Caption of the figure.
        axis: Name of the axis; its values are the points' x.
        unit: Of the values: ``ms``, ``GiB``, ``%``; ``B`` is written in the unit that suits.
    """

    name: str
    title: str
    axis: str
    unit: str
    series: tuple[Series, ...]

    @property
    def drawn(self) -> list[Series]:
        """The series that have a value."""
        return [series for series in self.series if series.known]

    @property
    def places(self) -> list[float]:
        """All values of the axis, ascending."""
        return sorted({x for series in self.series for x, _ in series.points})

    @property
    def across(self) -> Scale:
        """The scale of the axis."""
        return Scale.of(self.places)

    @property
    def up(self) -> Scale:
        """The scale of the quantity; it has zero where it is linear."""
        values = (y for series in self.series for _, y in series.known)
        return Scale.of(values, with_zero=True, is_binary=self.unit == "B")

    def mark(self, place: float) -> str:
        """A value of the axis."""
        return f"{place:g}" if abs(place) < COUNT_FROM else format_count(place).strip()

    def tick(self, value: float) -> str:
        """A round value of the quantity."""
        return format_bytes(value) if self.unit == "B" else f"{value:,.6g}"

    def words(self, value: float | None) -> str:
        """A value of the quantity with its unit; a dash where there is none."""
        return "–" if value is None else with_unit(value, self.unit)


def with_unit(value: float, unit: str) -> str:
    """A number with four digits and its unit; ``B`` becomes the unit that suits."""
    return digits(value, unit) if unit == "B" else f"{digits(value, unit)} {unit}".rstrip()


def digits(value: float, unit: str) -> str:
    """The same without the unit. Byte values carry their own unit."""
    if unit == "B":
        return format_bytes(value)
    integer_digits = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{max(0, DIGITS - integer_digits)}f}"


class Scale(msgspec.Struct, frozen=True):
    """An axis from ``low`` to ``high``, ``low`` less. A binary one has powers of two as ticks."""

    low: float
    high: float
    is_log: bool
    is_binary: bool = False

    @classmethod
    def of(
        cls, values: Iterable[float], *, with_zero: bool = False, is_binary: bool = False
    ) -> Scale:
        """A scale that holds all of these values, logarithmic where they are far apart."""
        numbers = list(values)
        low, high = min(numbers), max(numbers)
        if low > 0 and high >= LOG_FROM * low:
            return cls(low, high, is_log=True, is_binary=is_binary)
        if with_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.0 if low < high else abs(high) / 2 or 1.0
        return cls(low - room, high + room, is_log=False, is_binary=is_binary)

    def part(self, value: float) -> float:
        """Position of a value: 0 at the low end, 1 at the high."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, limit: int) -> list[float]:
        """Round values within the axis, at least one and at most ``limit``, which is 2 or more."""
        ticks = self._log_ticks() if self.is_log else []
        if len(ticks) < 2:
            # A step may be 2.5 times the part that it rounds, and then two parts hold none of it.
            ticks = self._even_ticks(limit) or self._even_ticks(2 * limit)
        return ticks[:: math.ceil(len(ticks) / limit)]

    def _even_ticks(self, limit: int) -> list[float]:
        rough = (self.high - self.low) / limit
        if self.is_binary:
            step = 2.0 ** math.ceil(math.log2(rough))
        else:
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * n for n in (*_STEPS, 10) if power * n >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [n * step for n in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        base, steps = (2.0, (1,)) if self.is_binary else (10.0, _STEPS)
        first, last = (math.log(value, base) for value in (self.low, self.high))
        powers = [base**n for n in range(math.floor(first), math.ceil(last) + 1)]
        inside = [n * power for power in powers for n in steps if self.low <= n * power]
        inside_powers = [value for value in powers if self.low <= value <= self.high]
        return (
            inside_powers
            if len(inside_powers) > 3
            else [value for value in inside if value <= self.high]
        )


_STATISTICS = (
    "median_ms",
    "ci_low_ms",
    "ci_high_ms",
    "mad_ms",
    "mean_ms",
    "std_ms",
    "min_ms",
    "max_ms",
    "n",
    "iqr_ms",
    "p10_ms",
    "p90_ms",
    "drift",
)


INSIDE = "95 % interval inside one process"


def interval_words(timing: Timing) -> str:
    """The interval that the step and the phases have: ``95 % interval of 8 processes``.

    Two to five processes have none: their ends are the extremes.
    """
    if timing.interval_of == "steps":
        return INSIDE
    rounds = timing.step.n
    kind = "range" if rounds < MIN_FOR_INTERVAL else "95 % interval"
    return f"{kind} of {rounds} processes"


def known_words(timing: Timing) -> str:
    """What the median is of: ``of 40 steps in one process``, ``of 5 rounds``."""
    if timing.interval_of == "steps":
        return f"of {timing.step.n} steps in one process"
    return f"of {timing.step.n} rounds"


def ending_words(
    reason: str, half_width: float | None, *, until: float, steps: int
) -> Iterator[str]:
    """``✓ within ±5 %``, ``stopped at 15 s``: the interval against the goal, then what ended it.

    Args:
        reason: Why measuring stopped; empty while it goes on.
        half_width: Of the interval inside one process, as a share of the median; None where there
            is none.
        until: The goal, as a share.
        steps: The number of steps asked for: then there is no goal. 0 for none.
    """
    goal = f"±{100 * until:.2g} %"
    words = stop_words(reason)
    if words == ON_REQUEST:
        yield f"! {words}"
        return
    if steps:
        pass
    elif half_width is not None and half_width <= until:
        yield f"✓ within {goal}"
    elif reason:
        yield f"! not within {goal}"
    if words:
        yield words


def timing_table(timing: Timing) -> Table:
    """One row for the step and one for each phase; on a GPU one for the host's issue time.

    With rounds, step and phases are of their medians, and ``all steps`` of every step in them; the
    host's issue time stays that of one process.
    """
    series: dict[str, Spread] = {"step": timing.step, **timing.phases}
    if timing.steps is not None:
        series["all steps"] = timing.steps
    if timing.issue is not None:
        series["issue (host)"] = timing.issue
    clock = "CUDA events" if timing.clock == "cuda-events" else "host clock"

    # Below six rounds the ends are no 95 % interval, and must not be headed so.
    headings = {} if timing.interval_of == "steps" else {"ci_low_ms": "low", "ci_high_ms": "high"}

    def statistic(key: str) -> Column[str]:
        return Column(key, lambda phase: getattr(series[phase], key), headings.get(key, ""))

    return tabulate(
        series,
        (Column("phase", lambda phase: phase), *map(statistic, _STATISTICS)),
        name="timing",
        title=f"Timing: ms per step, {clock}, no profiler; {interval_words(timing)}",
    )


def rounds_table(timing: Timing) -> Table:
    """One row a round: its median with the interval inside the process, and the machine then."""

    def why(one: Round) -> str:
        return one.disturbed or ("" if one.outcome == "finished" else one.outcome)

    return tabulate(
        timing.rounds,
        (
            Column("round", lambda one: one.index),
            *fields_of(Round, "median_ms", "ci_low_ms", "ci_high_ms"),
            Column("n", lambda one: one.steps),
            Column("counts", lambda one: one.counts),
            Column("why_not", why, is_optional=True),
            Column("sm_clock_mhz", lambda one: one.sm_clock_mhz, "SM MHz", is_optional=True),
            Column(
                "temperature_celsius", lambda one: one.temperature_celsius, "°C", is_optional=True
            ),
            Column("clock_reasons", lambda one: ", ".join(one.clock_reasons), is_optional=True),
            Column(
                "cpu_percent",
                lambda one: one.cpu_percent,
                "host CPU %",
                format="{:.0f}",
                is_optional=True,
            ),
            Column(
                "own_cpu_percent",
                lambda one: one.own_cpu_percent,
                "own CPU %",
                format="{:.0f}",
                is_optional=True,
            ),
            Column("tenants", lambda one: ", ".join(one.tenants), is_optional=True),
            Column("experiment", lambda one: one.experiment, is_optional=True),
            Column("side", lambda one: one.side, is_optional=True),
            Column("block", lambda one: one.block, is_optional=True),
        ),
        name="rounds",
        title=f"Rounds: one process each; {INSIDE}",
    )


def speed_table(timing: Timing, telemetry: Telemetry | None = None) -> Table:
    """Rates from the timing, the choice of its steps, and on a GPU its clock meanwhile.

    Of several rounds the rates follow from the median of all, the rest is of round ``of_round``;
    the clock is sampled over the measured parts of all.
    """
    standing = middle(timing.rounds)
    of_rounds: dict[str, Cell] = {}
    if standing is not None:
        of_rounds = {"interval": interval_words(timing), "of_round": standing.index}
    values: dict[str, Cell] = {
        **of_rounds,
        "first_step_ms": timing.first_step_ms,
        "wall_ms": timing.wall_ms,
        "tokens_per_second": timing.tokens_per_second,
        "tflops": timing.tflops,
        "mfu": timing.mfu,
        "causal_mfu": timing.causal_mfu,
        "mfu_formula": timing.mfu_formula or None,
        "warmup_steps": len(timing.warmup_ms),
        "warmup_settled": timing.warmup_settled,
        "settled": timing.settled,
        "stop_reason": timing.stop_reason,
        "loss_first": timing.loss_first,
        "loss_last": timing.loss_last,
        **_clock(timing, telemetry),
    }
    return facts("speed", "Speed and how the steps were chosen", values, timing.missing)


def _clock(timing: Timing, telemetry: Telemetry | None) -> dict[str, Cell]:
    """The SM clock and what held it; nothing on a CPU."""
    series = telemetry.series if telemetry else {}
    clock = next((spread for name, spread in series.items() if name.endswith(".sm_clock_mhz")), {})
    on_cuda = timing.issue is not None
    cells: dict[str, Cell] = {
        f"sm_clock_{statistic}_mhz": clock[statistic]
        for statistic in ("min", "median", "max")
        if statistic in clock
    }
    if timing.throttled is not None or (on_cuda and "throttled" in timing.missing):
        cells["throttled"] = throttled_words(timing)
    return cells


def throttled_words(timing: Timing) -> str | None:
    """``power cap 43.0 %, thermal 0.2 %`` of the measured part; None where it was not counted."""
    if timing.throttled is None:
        return None
    held = {reason: share for reason, share in timing.throttled.items() if share}
    return ", ".join(f"{reason} {percent(share)}" for reason, share in held.items()) or "never"


def telemetry_table(block: Telemetry) -> Table:
    """One row per series, over the measured part of the timing pass."""

    def statistic(key: str, priority: int = 0) -> Column[str]:
        return Column(key, lambda name: block.series[name].get(key), priority=priority)

    return tabulate(
        block.series,
        (
            Column[str](QUANTITY, lambda name: name, is_flexible=True),
            statistic("min", priority=2),
            statistic("median"),
            statistic("max", priority=1),
            statistic("n", priority=3),
        ),
        name="telemetry",
        title=f"Telemetry: {counted(block.samples, 'sample')}, "
        f"one every {block.interval_seconds:g} s",
    )
