"""Timing, compilation and telemetry of a record as tables."""

from __future__ import annotations

from ..formatting import counted
from ..record.record import Spread, Telemetry, Timing
from .table import QUANTITY, Column, Table, facts, tabulate

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


def timing_table(timing: Timing) -> Table:
    """One row for the step and one for each phase; on a GPU one for the host's issue time."""
    series: dict[str, Spread] = {"step": timing.step, **timing.phases}
    if timing.issue is not None:
        series["issue (host)"] = timing.issue
    clock = "CUDA events" if timing.clock == "cuda-events" else "host clock"

    def statistic(key: str) -> Column[str]:
        return Column(key, lambda phase: getattr(series[phase], key))

    return tabulate(
        series,
        (Column("phase", lambda phase: phase), *map(statistic, _STATISTICS)),
        name="timing",
        title=f"Timing: milliseconds per step, {clock}, no profiler",
    )


def speed_table(timing: Timing) -> Table:
    """Rates from the timing, and the choice of its steps."""
    values = {
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
    }
    return facts("speed", "Speed and how the steps were chosen", values, timing.missing)


def telemetry_table(block: Telemetry) -> Table:
    """One row per series, over the measured part of the timing pass."""

    def statistic(key: str) -> Column[str]:
        return Column(key, lambda name: block.series[name].get(key))

    return tabulate(
        block.series,
        (
            Column(QUANTITY, lambda name: name),
            *map(statistic, ("min", "median", "max", "n")),
        ),
        name="telemetry",
        title=f"Telemetry: {counted(block.samples, 'sample')}, "
        f"one every {block.interval_seconds:g} s",
    )
