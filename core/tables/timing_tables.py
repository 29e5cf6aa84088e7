"""Tables of timing and telemetry, and the data of figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sysbench.core.compare.rounds import MIN_FOR_INTERVAL, middle
from sysbench.core.compare.statistics import ON_REQUEST, stop_words
from sysbench.core.formatting import counted, format_bytes, format_count, percent, significant
from sysbench.core.record.record import Round, Spread, Telemetry, Timing
from sysbench.core.record.timing import Decode, Energy
from sysbench.core.tables.table import QUANTITY, Cell, Column, Table, attributes, facts, tabulate

LOG_FROM = 8.0
"""Ratio of an axis's ends from which it is logarithmic."""
DIGITS = 4
COUNT_FROM = 1e6
"""Axis values from this one on are written as counts: ``969 M``."""
_STEPS = (1, 2, 5)

Point = tuple[float, float]


class Series(msgspec.Struct, frozen=True):
    """One line with ascending x; y is None for a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def known(self) -> list[Point]:
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def pieces(self) -> list[list[Point]]:
        """Runs of adjacent points that have values; gaps are not bridged."""
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
        name: Quantity with its unit.
        title: Caption.
        axis: Name of the x axis.
        unit: ``ms``, ``GiB``, ``%``; ``B`` is scaled.
    """

    name: str
    title: str
    axis: str
    unit: str
    series: tuple[Series, ...]

    @property
    def drawn(self) -> list[Series]:
        return [series for series in self.series if series.known]

    @property
    def places(self) -> list[float]:
        return sorted({x for series in self.series for x, _ in series.points})

    @property
    def across(self) -> Scale:
        return Scale.of(self.places)

    @property
    def up(self) -> Scale:
        """Scale of the quantity; a linear one includes zero."""
        values = (y for series in self.series for _, y in series.known)
        return Scale.of(values, with_zero=True, is_binary=self.unit == "B")

    def mark(self, place: float) -> str:
        return f"{place:g}" if abs(place) < COUNT_FROM else format_count(place).strip()

    def tick(self, value: float) -> str:
        return format_bytes(value) if self.unit == "B" else f"{value:,.6g}"

    def words(self, value: float | None) -> str:
        return "–" if value is None else with_unit(value, self.unit)


def with_unit(value: float, unit: str) -> str:
    """Format with four digits and the unit; ``B`` is scaled."""
    return digits(value, unit) if unit == "B" else f"{digits(value, unit)} {unit}".rstrip()


def digits(value: float, unit: str) -> str:
    """Format with four digits; bytes have their unit."""
    if unit == "B":
        return format_bytes(value)
    integer_digits = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{max(0, DIGITS - integer_digits)}f}"


class Scale(msgspec.Struct, frozen=True):
    """An axis. A binary one has powers of two as ticks."""

    low: float
    high: float
    is_log: bool
    is_binary: bool = False

    @classmethod
    def of(
        cls, values: Iterable[float], *, with_zero: bool = False, is_binary: bool = False
    ) -> Scale:
        """Make a scale that contains all values, logarithmic if they are far apart."""
        numbers = list(values)
        low, high = min(numbers), max(numbers)
        if low > 0 and high >= LOG_FROM * low:
            return cls(low, high, is_log=True, is_binary=is_binary)
        if with_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        margin = 0.0 if low < high else abs(high) / 2 or 1.0
        return cls(low - margin, high + margin, is_log=False, is_binary=is_binary)

    def part(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, limit: int) -> list[float]:
        """Return 1 to ``limit`` round values; ``limit`` is at least 2."""
        ticks = self._log_ticks() if self.is_log else []
        if len(ticks) < 2:
            # A step may be 2.5 times the unrounded part, so that two parts contain none.
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


STATISTICS = {
    "median_ms": "median of the samples, or of the rounds' medians",
    "ci_low_ms": "lower end of the median's 95 % interval; the minimum below six samples",
    "ci_high_ms": "upper end of the median's 95 % interval; the maximum below six samples",
    "mad_ms": "1.4826 × median absolute deviation: the standard deviation of normal samples",
    "mean_ms": "arithmetic mean of the samples",
    "std_ms": "standard deviation of the samples",
    "min_ms": "shortest sample",
    "max_ms": "longest sample",
    "n": "number of samples",
    "iqr_ms": "interquartile range: width of the middle half of the samples",
    "p10_ms": "10th percentile of the samples",
    "p90_ms": "90th percentile of the samples",
    "drift": "median of the second half of the samples over that of the first, minus one",
}
"""Statistics of a series, each with a sentence about its column."""
SERIES_STATISTICS = {
    "min": "lowest value during the steps",
    "median": "median value during the steps",
    "max": "highest value during the steps",
    "n": "number of samples",
}
"""Statistics of a telemetry series, each with a sentence about its column."""


INSIDE = "inside one process"


def interval_words(timing: Timing) -> str:
    """Describe the interval of step and phases: ``95 % interval of 8 processes``.

    Below six samples the ends are the extremes.
    """
    of = INSIDE if timing.interval_of == "steps" else f"of {timing.step.n} processes"
    return f"{'95 % interval' if _has_interval(timing) else 'range'} {of}"


def _has_interval(timing: Timing) -> bool:
    return timing.step.n >= MIN_FOR_INTERVAL


def known_words(timing: Timing) -> str:
    """Describe the samples of the median: ``of 40 steps in one process``, ``of 5 rounds``."""
    if timing.of_command and timing.interval_of == "steps":
        return "of one run from start to end"
    if timing.interval_of == "steps":
        return f"of {counted(timing.step.n, 'step')} in one process"
    return f"of {counted(timing.step.n, 'round')}"


def ending_words(
    reason: str, half_width: float | None, *, until: float, steps: int
) -> Iterator[str]:
    """Yield ``✓ within ±5 %``, ``stopped at 15 s``: the goal, then why measuring ended.

    Args:
        reason: Why measuring stopped; empty while it runs.
        half_width: Interval inside one process as a share of the median, if known.
        until: Goal as a share; 0 without one.
        steps: Requested number of steps, which replaces the goal; 0 for none.
    """
    goal = f"±{100 * until:.2g} %"
    words = stop_words(reason)
    if words == ON_REQUEST:
        yield f"! {words}"
        return
    if steps or not until:
        pass
    elif half_width is not None and half_width <= until:
        yield f"✓ within {goal}"
    elif reason:
        yield f"! not within {goal}"
    if words:
        yield words


def timing_table(timing: Timing) -> Table:
    """One row for the step and each phase; on a GPU also for the host's issue time.

    With rounds, step and phases are statistics of the rounds' medians and ``all steps`` of all
    steps; the host's issue time is of one process.
    """
    whole = timing.whole
    series: dict[str, Spread] = {whole: timing.step, **timing.phases}
    if timing.steps is not None and not timing.of_command:
        series["all steps"] = timing.steps
    if timing.issue is not None:
        series["issue (host)"] = timing.issue
    clock = "CUDA events" if timing.clock == "cuda-events" else "host clock"

    is_named = _has_interval(timing) and timing.interval_of == "steps"
    headings = {} if is_named else {"ci_low_ms": "low", "ci_high_ms": "high"}

    def statistic(key: str) -> Column[str]:
        return Column(
            key,
            lambda phase: getattr(series[phase], key),
            headings.get(key, ""),
            about=STATISTICS[key],
        )

    return tabulate(
        series,
        Column[str]("phase", lambda phase: phase, about="the step, or a part of it"),
        *map(statistic, STATISTICS),
        name="timing",
        title=f"Timing: ms per {whole}, {clock}, no profiler; {interval_words(timing)}",
    )


def rounds_table(timing: Timing) -> Table:
    """One row per round: median, interval inside the process, and machine state."""

    def why(row: Round) -> str:
        return row.disturbed or ("" if row.outcome == "finished" else row.outcome)

    return tabulate(
        timing.rounds,
        Column("round", "index"),
        "median_ms",
        "ci_low_ms",
        "ci_high_ms",
        Column("n", "steps", about="number of samples"),
        Column("counts", about="true if the round counts"),
        Column("why_not", why, is_optional=True, about="reason why the round does not count"),
        Column("sm_clock_mhz", heading="SM MHz", is_optional=True),
        Column("temperature_celsius", heading="°C", is_optional=True),
        Column(
            "clock_reasons",
            lambda row: ", ".join(row.clock_reasons),
            is_optional=True,
            about="reasons for a lower GPU clock",
        ),
        Column("cpu_percent", heading="host CPU %", format="{:.0f}", is_optional=True),
        Column("own_cpu_percent", heading="own CPU %", format="{:.0f}", is_optional=True),
        Column(
            "tenants",
            lambda row: ", ".join(row.tenants),
            is_optional=True,
            about="other processes on the device",
        ),
        Column("experiment", is_optional=True, about="experiment of the round"),
        Column("side", is_optional=True),
        Column("block", is_optional=True),
        name="rounds",
        title=f"Rounds: one process each; 95 % interval {INSIDE}",
    )


def speed_table(timing: Timing, telemetry: Telemetry | None = None) -> Table:
    """Rates, how the steps were chosen, and the GPU clock.

    With several rounds the rates follow from the median of all; other values are of ``of_round``.
    """
    middle_round = middle(timing.rounds)
    of_rounds: dict[str, Cell] = {}
    if middle_round is not None:
        of_rounds = {"interval": interval_words(timing), "of_round": middle_round.index}
    energy, no_energy = timing.energy, timing.missing.get("energy")
    energies: dict[str, Cell] = {}
    if energy is not None or no_energy:
        energies = {name: getattr(energy, name) if energy else None for name in ENERGY}
        energies["energy_source"] = energies.pop("source")
    values: dict[str, Cell] = {
        **of_rounds,
        **attributes(timing, "first_step_ms", "wall_ms", "tokens_per_second", "tflops", "mfu"),
        "causal_mfu": timing.causal_mfu,
        "mfu_formula": timing.mfu_formula or None,
        "warmup_steps": len(timing.warmup_ms),
        **attributes(timing, "warmup_settled", "settled", "stop_reason", "loss_first", "loss_last"),
        **_serving(timing.decode),
        **_clock(timing, telemetry),
        **energies,
    }
    missing = timing.missing | (dict.fromkeys(energies, no_energy) if no_energy else {})
    return facts("speed", "Speed and how the steps were chosen", values, missing)


def _serving(decode: Decode | None) -> dict[str, Cell]:
    if decode is None:
        return {}
    names = ("prefill_ms",) if decode.token_ms is None else ("bandwidth_share", "bandwidth_formula")
    sizes = ("cache", "cache_bytes", "bytes_per_token", "weight_bytes")
    return attributes(decode, *names, *sizes)


ENERGY = {
    "joules_per_step": "energy of a step, J",
    "joules_per_token": "energy of a token, J",
    "source": "the energy counter, or the integral of power readings",
}
"""Figures of energy, each with a sentence about its column."""
JOULES = "{:.4g}"


def energy_table(energies: Mapping[str, Energy | None]) -> Table:
    """One row for each side with a measured energy. It is one figure of a side, without a test."""
    known = [(side, energy) for side, energy in energies.items() if energy is not None]
    step, token, source = ENERGY.values()
    columns: tuple[Column[tuple[str, Energy]], ...] = (
        Column("side", lambda pair: pair[0]),
        Column("joules_per_step", lambda pair: pair[1].joules_per_step, format=JOULES, about=step),
        Column(
            "joules_per_token", lambda pair: pair[1].joules_per_token, format=JOULES, about=token
        ),
        Column("source", lambda pair: pair[1].source, about=source),
    )
    return tabulate(known, *columns, name="energy", title="Energy on the device: not tested")


def energy_words(timing: Timing) -> list[str]:
    """Return ``8.1 J a step (counter)``; nothing if the energy was not measured."""
    if timing.energy is None:
        return []
    whole = timing.whole_words
    joules = significant(timing.energy.joules_per_step, 3)
    return [f"{joules} J {whole} ({timing.energy.source})"]


def _clock(timing: Timing, telemetry: Telemetry | None) -> dict[str, Cell]:
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
    """``power cap 43.0 %, thermal 0.2 %`` of the measured time; None if not counted."""
    if timing.throttled is None:
        return None
    held = {reason: share for reason, share in timing.throttled.items() if share}
    return ", ".join(f"{reason} {percent(share)}" for reason, share in held.items()) or "never"


def telemetry_table(block: Telemetry) -> Table:
    """One row per series, over the measured part of the timing pass."""

    def statistic(key: str, priority: int = 0) -> Column[str]:
        return Column(
            key,
            lambda name: block.series[name].get(key),
            priority=priority,
            about=SERIES_STATISTICS[key],
        )

    return tabulate(
        block.series,
        Column[str](QUANTITY, lambda name: name, is_flexible=True, about="device and quantity"),
        statistic("min", priority=2),
        statistic("median"),
        statistic("max", priority=1),
        statistic("n", priority=3),
        name="telemetry",
        title=f"Telemetry: {counted(block.samples, 'sample')}, "
        f"one every {block.interval_seconds:g} s",
    )
