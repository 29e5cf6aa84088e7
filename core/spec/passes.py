"""Parse passes, and check whether they can measure a spec."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from sysbench.core.errors import SpecError
from sysbench.core.formatting import did_you_mean
from sysbench.core.record.blocks import EVERY_PASS, PASSES, PassName
from sysbench.core.spec.spec import NUMERIC_WORKLOADS, RunSpec


def check_passes(spec: RunSpec, passes: Sequence[PassName]) -> None:
    """Raise SpecError if a pass cannot measure the spec's workload, or if there is none."""
    if not passes:
        raise SpecError("passes", "", "at least one")
    ranked = [name for name, row in PASSES.items() if row.takes_ranks]
    stepless = [name for name, row in PASSES.items() if not row.measures_steps]
    for name in passes:
        if spec.ranks > 1 and not PASSES[name].takes_ranks:
            raise SpecError("passes", name, f"{_only(ranked)} of several ranks")
        if PASSES[name].measures_steps == spec.has_steps:
            continue
        if spec.has_steps:
            allowed = f"one that measures steps; {name} is for {' and '.join(NUMERIC_WORKLOADS)}"
        else:
            allowed = f"{_only(stepless)} of workload = {spec.workload}, which has no steps"
        raise SpecError("passes", name, allowed)


MAX_ROUNDS = 100


def check_repeat(repeat: int, passes: Sequence[PassName]) -> None:
    """Raise SpecError if these passes cannot be measured in ``repeat`` rounds."""
    if not 1 <= repeat <= MAX_ROUNDS:
        raise SpecError("repeat", repeat, f"rounds of the timing pass, 1 to {MAX_ROUNDS}")
    if repeat > 1 and "timing" not in passes:
        raise SpecError("repeat", repeat, "several rounds need the timing pass")


def _only(names: Sequence[str]) -> str:
    return f"{' and '.join(names)}, the only {'pass' if len(names) == 1 else 'passes'}"


def parse_passes(names: str | Sequence[str]) -> list[PassName]:
    """Parse ``"timing,trace"`` or a list to passes, in the order in which they run.

    Raises:
        SpecError: An unknown pass, or none; or one whose program is not installed.
    """
    texts = names.split(",") if isinstance(names, str) else list(names)
    wanted = {text.strip() for text in texts if text.strip()}
    unknown = sorted(wanted - set(EVERY_PASS))
    if unknown or not wanted:
        hint = did_you_mean(unknown[0], EVERY_PASS) if unknown else ""
        allowed = f"{hint}any of {', '.join(EVERY_PASS)}"
        raise SpecError("passes", unknown[0] if unknown else names, allowed)
    chosen = [row for row in PASSES.values() if row.name in wanted]
    for row in chosen:
        if row.program and shutil.which(row.program) is None:
            allowed = f"{row.program} is not on PATH: {row.remedy}, or leave this pass out"
            raise SpecError("passes", row.name, allowed)
    return [row.name for row in chosen]
