"""Decide whether a slowdown stays within a margin, and how many rounds would decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median
from typing import Literal

import msgspec

from sysbench.core.compare.bounds import MAX_BLOCKS
from sysbench.core.compare.compared_records import NOTHING_KNOWN, Known, counted_ms, round_blocks
from sysbench.core.compare.interval import RoundBlock, residuals
from sysbench.core.compare.power import QUANTILES, ROUNDS_A_BLOCK, duet_pairs_needed, more_rounds
from sysbench.core.compare.verdict import Verdict
from sysbench.core.errors import WorkerFailed
from sysbench.core.formatting import percent, signed_percent
from sysbench.core.record.record import Record

DEFAULT_ROUNDS = 6
"""Default number of rounds a side, and the minimum that a gate recommends."""
_MAX_ROUNDS = 1000
_NO_FAILURE = ("finished", "cancelled", "killed")

GateResult = Literal["pass", "regression", "not decidable"]
GATE_EXITS: dict[GateResult, int] = {"pass": 0, "regression": 3, "not decidable": 4}


def gate(verdict: Verdict, margin: float) -> GateResult:
    """Decide whether B is slower than A by more than a margin, by the whole interval."""
    if verdict.verdict == "not the same computation":
        return "not decidable"
    if verdict.low is None or verdict.high is None:
        return "not decidable"
    if verdict.high <= margin:
        return "pass"
    return "regression" if verdict.low > margin else "not decidable"


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """B's step time compared with A's and a margin.

    Attributes:
        margin: Allowed slowdown, as a share of A's time.
        result: Outcome, by the whole interval of the change.
        reason: The interval, in words.
        next: What would decide it; empty for a decided gate.
        rounds: Rounds of each side, including the present ones, that would decide it with a chance
            of `WANTED_POWER`; null if it is decided, or if no number would suffice.
    """

    margin: float
    result: GateResult
    exit_code: int
    reason: str
    next: str = ""
    rounds: int | None = None


def gate_of(
    a: Record,
    b: Record,
    verdict: Verdict,
    margin: float,
    known: Known = NOTHING_KNOWN,
    *,
    names: tuple[str, str] = ("A", "B"),
) -> Gate:
    """Compare a verdict on two runs with a margin; WorkerFailed as in `check_timed`."""
    for record in (a, b):
        check_timed(record)
    result = gate(verdict, margin)
    if result != "not decidable":
        return Gate(
            margin=margin, result=result, exit_code=GATE_EXITS[result], reason=_reason(verdict)
        )
    if verdict.verdict == "not the same computation" or verdict.change is None:
        return undecided(margin, verdict.why, verdict.next)
    rounds, following = _needed(a, b, verdict, margin, known, names)
    return msgspec.structs.replace(undecided(margin, _reason(verdict), following), rounds=rounds)


def undecided(margin: float, reason: str, following: str) -> Gate:
    """An undecided gate; ``following`` is what would decide it."""
    result: GateResult = "not decidable"
    exit_code = GATE_EXITS[result]
    return Gate(margin=margin, result=result, exit_code=exit_code, reason=reason, next=following)


def gate_line(row: Gate) -> str:
    """``gate 3.0 %: regression: the whole interval …``."""
    following = f"; {row.next}" if row.next else ""
    return f"gate {percent(row.margin)}: {row.result}: {row.reason}{following}"


def check_timed(record: Record) -> None:
    """Check that a run can be judged; it may lack unfinished rounds.

    Raises WorkerFailed if it failed before it had a step time, or if its last round failed.
    """
    if record.timing is None and record.status not in ("finished", "running"):
        raise WorkerFailed(f"run {record.id} ended as {record.status} and has no step time")
    rounds = record.timing.rounds if record.timing else []
    if rounds and rounds[-1].outcome not in _NO_FAILURE:
        raise WorkerFailed(f"run {record.id}: round {rounds[-1].index} {rounds[-1].outcome}")


def _reason(verdict: Verdict) -> str:
    if verdict.low is None or verdict.high is None:
        return verdict.why
    ends = f"{signed_percent(verdict.low, 2)} to {signed_percent(verdict.high, 2)}"
    return f"95 % interval of the change {ends}"


def _needed(
    a: Record,
    b: Record,
    verdict: Verdict,
    margin: float,
    known: Known,
    names: tuple[str, str],
) -> tuple[int | None, str]:
    change, spread = verdict.change, verdict.spread
    if change is None:
        return None, verdict.next
    present = [len(counted_ms(x.timing)) if x.timing else 0 for x in (a, b)]
    counts = f"{names[0]} has {present[0]}, {names[1]} has {present[1]}"
    distance = abs(math.log1p(change) - math.log1p(margin))
    if verdict.basis == "interleaved rounds" and a.timing and b.timing:
        blocks = round_blocks(a.timing.rounds, b.timing.rounds)
        rounds = interleaved_rounds(blocks, margin)
    elif verdict.basis == "duet pairs" and spread is not None:
        rounds = duet_pairs_needed(spread, math.expm1(distance))
    elif spread is None:
        return None, f"{DEFAULT_ROUNDS} rounds a side would show the spread: {counts}"
    else:
        slack = math.log1p(known.drift) if verdict.basis == "separate rounds" else 0.0
        if distance <= slack:
            drift = percent(known.drift, 2)
            return None, (
                f"no number of separate rounds decides it, as this machine drifts by {drift}: "
                "measure both in turn with `sysbench-tui ab`"
            )
        rounds = separate_rounds(spread, distance - slack)
    if rounds is None:
        return None, "the change is too close to the margin for any number of rounds"
    return rounds, f"about {rounds} rounds a side would decide it: {counts}"


def interleaved_rounds(blocks: Sequence[RoundBlock], margin: float) -> int | None:
    """Rounds a side after which the gate on these blocks is decided with `WANTED_POWER`.

    The gate is the sequential test of B's times over one plus the margin, assuming that the true
    change is the one in the blocks. None if `MAX_BLOCKS` blocks are not enough.
    """
    scaled = [
        RoundBlock(block.a, (block.b[0] / (1 + margin), block.b[1] / (1 + margin)))
        for block in blocks
    ]
    middle = median(math.log(y / x) for block in scaled for x in block.a for y in block.b)
    available = ROUNDS_A_BLOCK * (MAX_BLOCKS - len(blocks))
    more = more_rounds(scaled, residuals(blocks), math.expm1(abs(middle)))
    return None if more is None or more >= available else (ROUNDS_A_BLOCK * len(blocks) + more) // 2


def separate_rounds(spread: float, distance: float) -> int | None:
    """Rounds a side with which the test of Mann and Whitney finds a shift, with `WANTED_POWER`.

    By Noether's formula (J. Am. Stat. Assoc. 82, 1987) for normal noise; at least `DEFAULT_ROUNDS`,
    below which the formula does not hold. None if more than a thousand would be needed. ``spread``
    and ``distance`` are of logarithms.
    """
    if distance <= 0:
        return None
    longer = NormalDist().cdf(distance / (math.sqrt(2) * spread)) if spread else 1.0
    rounds = QUANTILES**2 / (6 * max(longer - 0.5, 1e-6) ** 2)
    return None if rounds > _MAX_ROUNDS else max(DEFAULT_ROUNDS, math.ceil(rounds))
