"""Compare two runs: verdict, differing settings, and the break-even of torch.compile."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from sysbench.core.compare.compared_records import NOTHING_KNOWN, Known, verdict_of
from sysbench.core.compare.nodes import Difference
from sysbench.core.compare.verdict import MIN_EFFECT, Verdict, Word, headline, tested_words
from sysbench.core.memory.peak_difference import MemoryDifference, memory_difference
from sysbench.core.record.environment import (
    SDPA_KERNEL,
    changed_settings,
    device_name,
    node,
    sdpa_kernel,
    threads,
    torch_version,
)
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Energy
from sysbench.core.spec.command_line import job_command
from sysbench.core.spec.fields import differing_keys, keys_deciding, unused_keys
from sysbench.core.spec.own_model import JOB
from sysbench.core.spec.spec import DIMENSION_NAMES

OF_OWN_MODELS = ("model_args", "model_source", "trust_code", "workload")
_PROCEDURE = keys_deciding("procedure")


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    a: str | int | float | bool | None
    b: str | int | float | bool | None


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    a_ms: float | None
    b_ms: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Run B against run A.

    Attributes:
        a, b: Ids of the runs.
        verdict: Word of the verdict on the step time; ``why`` has its evidence.
        change: B's step time over A's, minus one; null without two timings.
        change_low, change_high: Its interval; null if the evidence is insufficient.
        step: The verdict in full.
        phases: ``step`` first, then each phase.
        a_peak_bytes, b_peak_bytes: Peak allocated, null without a memory pass and of a
            snapshot without a history.
        a_energy, b_energy: Energy of a step; null if it was not measured.
        factors: Differences that may be causes; with several the change has no single cause.
        procedure: Differences in the length of the measurement, which are not causes.
        memory: Differences at the peaks, null without two memory passes.
        difference: The change of the traced step and of the peak, row by row; null unless
            requested.
        of_files: True if a side is an imported file, which has no settings.
    """

    a: str
    b: str
    verdict: Word
    why: str
    change: float | None
    change_low: float | None
    change_high: float | None
    step: Verdict
    phases: list[PhaseChange]
    a_peak_bytes: int | None
    b_peak_bytes: int | None
    factors: list[Factor]
    procedure: list[Factor]
    memory: MemoryDifference | None = None
    difference: Difference | None = None
    of_files: bool = False
    a_energy: Energy | None = None
    b_energy: Energy | None = None


def _peak_bytes(record: Record) -> int | None:
    memory = record.memory
    return None if memory is None or memory.is_state else memory.peak_allocated_bytes


def compare(
    a: Record, b: Record, known: Known = NOTHING_KNOWN, *, smallest: float = MIN_EFFECT
) -> Comparison:
    """Judge run B against run A. Imported files have no settings that could differ."""
    of_files = not (a.spec and b.spec)
    differences = [] if of_files else differing(a, b)
    step = verdict_of(a, b, known, smallest=smallest)
    return Comparison(
        a=a.id,
        b=b.id,
        verdict=step.verdict,
        why=step.why,
        change=step.change,
        change_low=step.low,
        change_high=step.high,
        step=step,
        phases=_phases(a, b),
        a_peak_bytes=_peak_bytes(a),
        b_peak_bytes=_peak_bytes(b),
        factors=[factor for factor in differences if factor.name not in _PROCEDURE],
        procedure=[factor for factor in differences if factor.name in _PROCEDURE],
        memory=memory_difference(a.memory, b.memory) if a.memory and b.memory else None,
        of_files=of_files,
        a_energy=a.timing.energy if a.timing else None,
        b_energy=b.timing.energy if b.timing else None,
    )


def _phases(a: Record, b: Record) -> list[PhaseChange]:
    medians_a, medians_b = _medians(a), _medians(b)
    return [
        PhaseChange(name=name, a_ms=medians_a.get(name), b_ms=medians_b.get(name))
        for name in dict.fromkeys([*medians_a, *medians_b])
    ]


def _medians(record: Record) -> dict[str, float]:
    if record.timing is None:
        return {}
    phases = {name: spread.median_ms for name, spread in record.timing.phases.items()}
    return {"step": record.timing.step.median_ms, **phases}


def differing(a: Record, b: Record) -> list[Factor]:
    """Settings and facts of the machine that differ and could matter.

    Another model is one factor, whatever its dimensions. Settings that neither run used (an
    optimizer without a training step) are not factors, and neither is the kernel of ``sdpa`` if one
    run has no ``sdpa``.
    """
    changed = {*changed_settings(a.environment), *changed_settings(b.environment)} - {"threads"}
    factors_a, factors_b = _factors(a, changed), _factors(b, changed)
    ignored = unused_keys(a.spec) & unused_keys(b.spec) | {"model_file"}
    if None in (factors_a[SDPA_KERNEL], factors_b[SDPA_KERNEL]):
        ignored |= {SDPA_KERNEL}
    if factors_a.get("model") != factors_b.get("model"):
        ignored |= {*DIMENSION_NAMES, *OF_OWN_MODELS}
    return [row for row in differing_facts(factors_a, factors_b) if row.name not in ignored]


def differing_facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Factor]:
    return [Factor(name=name, a=a.get(name), b=b.get(name)) for name in differing_keys(a, b)]


def describe_factors(factors: Sequence[Factor]) -> str:
    if not factors:
        return "Same settings, same machine."
    if len(factors) == 1:
        return f"Only `{factors[0].name}` differs."
    return f"{len(factors)} factors differ: the change has no single cause."


def _factors(record: Record, changed: Collection[str]) -> dict[str, Any]:
    """Return what decides a run's times, with these settings that the code of a run has changed."""
    environment = record.environment
    settings = environment.get("settings") or {}
    spec = dict(record.spec)
    if spec.get("workload") == JOB:  # whose model is a name for its command
        spec["command"] = job_command(spec)
        del spec["model"]
    return {
        **spec,
        "device_name": device_name(environment),
        "node": node(environment),
        "torch": torch_version(environment),
        "threads": threads(environment),
        SDPA_KERNEL: sdpa_kernel(environment),
        **{f"settings.{name}": settings.get(name) for name in changed},
    }


class BreakEven(msgspec.Struct, frozen=True):
    """A compiled run against the eager run of the same spec, medians of the untraced step.

    ``saved_ms`` is eager minus compiled. ``steps_cold`` and ``steps_warm`` are the numbers of steps
    after which the savings exceed the compile time, with empty and with full caches. ``verdict``
    judges the compiled run against the eager one, and ``tested`` describes it; null and empty
    without two timings. Null values have their reason in ``missing``.
    """

    compiled_ms: float | None = None
    eager_ms: float | None = None
    eager_run: str | None = None
    saved_ms: float | None = None
    speed_up: float | None = None
    steps_cold: int | None = None
    steps_warm: int | None = None
    missing: dict[str, str] = {}
    verdict: Verdict | None = None
    tested: str = ""


def break_even(
    record: Record, eager: Record | None, how: str, known: Known = NOTHING_KNOWN
) -> BreakEven:
    """Steps = ceil(compile seconds / seconds saved per step), unless a test finds no saving.

    ``how`` describes how to make the ``eager`` run, if it is absent.
    """
    if record.timing is None or record.compile is None:
        return _never(BreakEven(), "this run has no timing")
    if record.compile.extent == "none":
        return _never(BreakEven(), "nothing ran compiled")
    step = record.timing.step
    if eager is None or eager.timing is None:
        missing = {**_never(BreakEven(), "it takes an eager run").missing, "eager_ms": how}
        return BreakEven(compiled_ms=step.median_ms, missing=missing)
    eager_step = eager.timing.step
    saved_ms = eager_step.median_ms - step.median_ms
    verdict = verdict_of(eager, record, known)
    medians = BreakEven(
        compiled_ms=step.median_ms,
        eager_ms=eager_step.median_ms,
        eager_run=eager.id,
        saved_ms=saved_ms,
        speed_up=eager_step.median_ms / step.median_ms if step.median_ms else None,
        verdict=verdict,
        tested=tested_words(verdict),
    )
    if saved_ms <= 0:
        return _never(medians, "never, by these medians: the compiled one is not shorter")
    if verdict.high is not None and verdict.high >= 0:
        return _never(medians, f"no saving is shown: {headline(verdict)}")
    if verdict.high is None and step.ci_high_ms >= eager_step.ci_low_ms:
        return _never(medians, "the two medians cannot be distinguished: their intervals overlap")
    seconds = {"cold": record.compile.cold_seconds, "warm": record.compile.warm_seconds}
    steps = {f"steps_{name}": _steps(value, saved_ms) for name, value in seconds.items()}
    missing = {
        f"steps_{name}": record.compile.missing.get(f"{name}_seconds", "it was not measured")
        for name, value in seconds.items()
        if value is None
    }
    return msgspec.structs.replace(medians, **steps, missing=missing)


def _steps(seconds: float | None, saved_ms: float) -> int | None:
    return None if seconds is None else math.ceil(seconds * 1e3 / saved_ms)


def _never(medians: BreakEven, reason: str) -> BreakEven:
    missing = dict.fromkeys(("steps_cold", "steps_warm"), reason)
    return msgspec.structs.replace(medians, missing=missing)
