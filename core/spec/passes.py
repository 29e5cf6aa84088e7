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
    for name in passes:
        if name in spec.possible_passes:
            continue
        only = _only(spec.possible_passes)
        if not spec.has_steps:
            allowed = f"{only} of workload = {spec.workload}, which has no steps"
        elif PASSES[name].measures_steps:
            allowed = f"{only} of {'all-reduce' if spec.payload_mib else 'several ranks'}"
        else:
            allowed = f"one that measures steps; {name} is for {' and '.join(NUMERIC_WORKLOADS)}"
        raise SpecError("passes", name, allowed)


MAX_ROUNDS = 100


def check_repeat(repeat: int, passes: Sequence[PassName]) -> None:
    """Raise SpecError if these passes cannot be measured in ``repeat`` rounds."""
    if not 1 <= repeat <= MAX_ROUNDS:
        raise SpecError("repeat", repeat, f"rounds of the timing pass, 1 to {MAX_ROUNDS}")
    if repeat > 1 and "timing" not in passes:
        raise SpecError("repeat", repeat, "several rounds need the timing pass")


def _only(names: Sequence[str]) -> str:
    *first, last = names
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{listed}, the only {'passes' if first else 'pass'}"


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
