"""Timing, compilation and telemetry of a record as tables."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.core.compare.rounds import LEAST_FOR_INTERVAL, middle
from sysbench.core.compare.statistics import ON_REQUEST, stop_words
from sysbench.core.formatting import counted, percent
from sysbench.core.record.record import Round, Spread, Telemetry, Timing
from sysbench.core.tables.table import QUANTITY, Cell, Column, Table, facts, fields_of, tabulate

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
    kind = "range" if rounds < LEAST_FOR_INTERVAL else "95 % interval"
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
