"""The record's timing block: series of times, and the rounds that they come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from sysbench.core.record.environment import Roof
from sysbench.core.record.events import Outcome

STATES = ("idle", "display clocks")
"""Clock reasons that are states of the GPU, not limits: it lowers its clock when idle, and follows
an attached display (GpuIdle and DisplayClockSetting of nvmlClocksEventReasons).
"""


def limiting_reasons(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that limit the clock of a workload, without repeats."""
    return [reason for reason in dict.fromkeys(reasons) if reason not in STATES]


AUTO_WARMUP = (5, 20)
"""Least and most warm-up steps of ``warmup = auto``."""


class Spread(msgspec.Struct, frozen=True):
    """Statistics of one series of samples, in milliseconds.

    ``ci_low_ms`` and ``ci_high_ms`` are the 95 % order-statistic interval of the median; ``mad_ms``
    is 1.4826 times the median absolute deviation; ``drift`` is the second half's median over the
    first half's, minus one; ``outliers`` are indices of samples farther than five scaled MADs from
    the median: listed, not dropped.
    """

    median_ms: float
    ci_low_ms: float
    ci_high_ms: float
    mad_ms: float
    iqr_ms: float
    mean_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    p10_ms: float
    p90_ms: float
    n: int
    drift: float
    outliers: list[int] = []

    @property
    def half_width(self) -> float:
        """Half of the median's 95 % interval, as a share of the median."""
        if not self.median_ms:
            return 0.0
        return (self.ci_high_ms - self.ci_low_ms) / 2 / self.median_ms


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that timed the run's spec once: the unit of a verdict.

    ``index`` counts from 1 in the order of starting. ``median_ms``, the round's figure, is the
    median of its ``steps`` steps; ``ci_low_ms`` and ``ci_high_ms`` are the 95 % order-statistic
    interval of that median inside this process; ``phases`` are medians too. All are null or empty
    if the process reported no timing.

    ``sm_clock_mhz`` and ``temperature_celsius`` are medians over the measured part, and
    ``clock_reasons`` what limited the clock. ``tenants`` are other processes on the device during
    this one's life, as ``name (pid)``. ``cpu_percent`` is the share of all of the host's cores that
    was busy in the measured part, ``own_cpu_percent`` the share of the round's own processes; null
    if the measured part was too short.

    ``disturbed`` is empty, or the reason why the round does not count. ``experiment``, ``block``,
    ``position`` (from 0 in its block) and ``side`` are those of the comparison that it was measured
    for.

    ``duet`` marks one of a pair of processes that took turns: the pair is the block, ``position`` 0
    began, ``turn_steps`` are the steps of each turn in ``samples_ms``, and ``own_cpu_percent`` is
    that of both processes.
    """

    index: int
    started_ns: int
    outcome: Outcome
    median_ms: float | None = None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    steps: int = 0
    first_step_ms: float | None = None
    settled: bool = False
    loss_first: float | None = None
    loss_last: float | None = None
    phases: dict[str, float] = {}
    samples_ms: list[float] = []
    sm_clock_mhz: float | None = None
    temperature_celsius: float | None = None
    cpu_percent: float | None = None
    own_cpu_percent: float | None = None
    clock_reasons: list[str] = []
    tenants: list[str] = []
    disturbed: str = ""
    experiment: str = ""
    block: int | None = None
    position: int | None = None
    side: str = ""
    duet: bool = False
    turn_steps: list[int] = []

    @property
    def counts(self) -> bool:
        """Whether the round has a valid figure: finished, and not disturbed."""
        return self.outcome == "finished" and self.median_ms is not None and not self.disturbed

    @property
    def half_width(self) -> float | None:
        """Half of the interval inside the process, as a share of the median; null without one."""
        if not self.median_ms or self.ci_low_ms is None or self.ci_high_ms is None:
            return None
        return (self.ci_high_ms - self.ci_low_ms) / 2 / self.median_ms


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of a step on its device, with everything else that ran there then.

    It is the mean power between the first and the last sample during the measured steps, times the
    time of a step. ``source`` is ``counter`` for the energy counter of NVML or, on a CPU, RAPL, and
    ``sampled power`` for the integral of power readings. ``seconds`` lie between these samples, and
    ``uncertainty`` is the part of them by which the counter may be behind, as a share.
    ``joules_per_token`` is null if the tokens of a step are unknown.
    """

    joules_per_step: float
    joules_per_token: float | None
    source: Literal["counter", "sampled power"]
    seconds: float
    uncertainty: float | None = None


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """Serving: what a step of ``prefill`` or ``decode`` takes, and the cache that it works on.

    ``prefill_ms`` is the time to the first token: all tokens of every sequence go into the cache.
    ``token_ms`` is the time per token: one of each sequence, at the last place of a cache that is
    full before it. The other one of the two is null. ``cache`` says what the cache is, and how it
    keeps its length from step to step.

    ``cache_bytes`` are all sequences' at full length, ``bytes_per_token`` what one more token of
    one sequence adds, null if that is unknown. ``weight_bytes`` are the parameters without
    embedding tables, of which a token reads a row. ``bandwidth_share`` is the time that reading
    weights and cache once takes at the bandwidth of ``timing.roof``, over the time per token.
    """

    cache: str
    cache_bytes: int
    weight_bytes: int
    bytes_per_token: int | None = None
    prefill_ms: float | None = None
    token_ms: Spread | None = None
    tokens_per_second: float | None = None
    bandwidth_share: float | None = None
    bandwidth_formula: str = ""


def with_step(
    decode: Decode | None, step: Spread, tokens_per_second: float | None
) -> Decode | None:
    """The same serving figures with another step time."""
    if decode is None:
        return None
    if decode.prefill_ms is None:
        return msgspec.structs.replace(decode, token_ms=step, tokens_per_second=tokens_per_second)
    return msgspec.structs.replace(
        decode, prefill_ms=step.median_ms, tokens_per_second=tokens_per_second
    )


class Timing(msgspec.Struct, frozen=True):
    """The timing pass: steps and phases timed without a profiler.

    ``clock`` is ``cuda-events`` (time on the device between phase boundaries) or ``host``.
    ``issue`` is the host's time to enqueue a step that began on an idle device, an upper bound if a
    step has more launches than the queue holds, null on the CPU; ``wall`` the host's time per step
    over each synchronised batch.

    ``model_flops`` count attention in full, ``causal_model_flops`` without its masked half; ``mfu``
    and ``causal_mfu`` are these per second over the dense peak of the precision, which ``roof``
    holds, and ``mfu_formula`` is the arithmetic with its numbers. Of several ranks ``step`` and its
    phases are the slowest one's, step by step, ``tokens_per_second`` is all ranks' and the FLOPs
    are one rank's.

    ``loss_start`` is the loss of the very first step, before any update, which every run of the
    same computation shares up to rounding; ``loss_first`` follows the warm-up, ``loss_last`` all
    steps. They are null for steps without a loss.

    ``batch_steps`` are the steps of each batch in ``samples_ms``, between two synchronisations.

    ``throttled`` is the share of the measured part in which the driver limited the GPU's clock, by
    reason, from its counters; reasons can overlap. It is null on the CPU and if the driver does not
    count, and of rank 0's GPU if there are several.

    ``of_command`` says that there are no steps: ``step`` is the wall time of a whole command.

    ``rounds`` are the processes of a run that was timed by several, those that do not count
    included; empty for one process, which is its own only round. With two or more that count,
    ``interval_of`` is ``rounds``: ``step`` and ``phases`` are then of the rounds' medians (``n`` is
    the number of rounds), ``steps`` is of all single steps of those rounds, rates follow from the
    new median, the energy is of all counting rounds, and everything else is of one process: the
    counting round whose median is the middle one, the lower of two.
    """

    clock: Literal["cuda-events", "host"]
    step: Spread
    phases: dict[str, Spread]
    issue: Spread | None
    wall_ms: float | None
    first_step_ms: float
    warmup_ms: list[float]
    warmup_settled: bool
    samples_ms: list[float]
    phase_samples_ms: dict[str, list[float]]
    stop_reason: str
    settled: bool
    tokens_per_second: float | None
    model_flops: float | None
    tflops: float | None
    mfu: float | None
    causal_model_flops: float | None = None
    causal_mfu: float | None = None
    mfu_formula: str = ""
    roof: Roof | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    loss_start: float | None = None
    missing: dict[str, str] = {}
    rounds: list[Round] = []
    interval_of: Literal["steps", "rounds"] = "steps"
    steps: Spread | None = None
    throttled: dict[str, float] | None = None
    batch_steps: list[int] = []
    of_command: bool = False
    energy: Energy | None = None
    decode: Decode | None = None

    @property
    def whole(self) -> str:
        """What a sample is of: ``command``, ``token`` (one of each sequence), or ``step``."""
        if self.of_command:
            return "command"
        return "token" if self.decode is not None and self.decode.token_ms is not None else "step"

    @property
    def whole_words(self) -> str:
        """For behind a time: ``a step``, ``a token``, ``to the first token``."""
        if self.of_command:
            return "from start to end"
        is_prefill = self.decode is not None and self.decode.prefill_ms is not None
        return "to the first token" if is_prefill else f"a {self.whole}"
