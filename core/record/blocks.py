"""Passes of a run, with the blocks of the record that each fills."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

PassName = Literal["timing", "trace", "memory", "nsys", "numerics"]
BlockName = Literal[
    "timing", "kernels", "memory", "compile", "nsys", "distributed", "oom", "numerics", "job"
]
"""Blocks that a worker may report. ``oom`` goes into the record of the pass that ran out of memory;
each other block is a field of `sysbench.core.record.record.Record`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One kind of measurement in its own process; ``worker/passes/<name>_pass.py`` measures it.

    Attributes:
        name: Also the name of its folder in the run.
        block: Field of the record that the pass fills; empty if the pass has no result.
        also: Fields that the pass fills for some specs only.
        step_ms: Path in the block to the milliseconds of a step; empty if none are timed.
        measures_steps: False for a pass over a workload that has values and no steps.
        is_default: Whether it runs if no passes are requested.
        takes_ranks: Whether it can measure several ranks.
        after_oom: Whether it still runs after another pass ran out of memory.
        program: Program that must be on PATH. It starts the worker that measures, so the pass
            itself does not need torch.
    """

    name: PassName
    block: BlockName
    also: tuple[BlockName, ...] = ()
    step_ms: str = ""
    measures_steps: bool = True
    is_default: bool = True
    takes_ranks: bool = False
    after_oom: bool = False
    program: str = ""
    remedy: str = ""

    @property
    def blocks(self) -> tuple[BlockName, ...]:
        """Fields of the record that the pass may fill."""
        return (self.block, *self.also)


_ROWS = (
    Pass(
        name="timing",
        block="timing",
        also=("compile", "distributed", "job"),
        step_ms="step.median_ms",
        takes_ranks=True,
    ),
    Pass(name="trace", block="kernels", step_ms="step_ms", takes_ranks=True),
    Pass(name="memory", block="memory", step_ms="step_ms", takes_ranks=True, after_oom=True),
    Pass(
        name="nsys",
        block="nsys",
        step_ms="kernels.step_ms",
        is_default=False,  # not installed everywhere
        program="nsys",
        remedy="install nsight-systems-cli (NVIDIA) or nsight-systems (Debian non-free)",
    ),
    Pass(name="numerics", block="numerics", measures_steps=False),
)

PASSES: dict[str, Pass] = {row.name: row for row in _ROWS}
"""In the order in which they run."""
EVERY_PASS: tuple[PassName, ...] = tuple(row.name for row in _ROWS)
STEP_PASSES: tuple[PassName, ...] = tuple(row.name for row in _ROWS if row.measures_steps)
DEFAULT_PASSES: tuple[PassName, ...] = tuple(
    name for name in STEP_PASSES if PASSES[name].is_default
)
"""Passes that run if none are requested, for a model on one device."""
RECORD_BLOCKS: tuple[BlockName, ...] = tuple(block for row in _ROWS for block in row.blocks)

STOPPING = {
    "failed": "failed",
    "cuda-error": "ended with a CUDA error",
    "disk-full": "filled the disk",
}
"""Outcomes after which no other pass starts, in words."""


def why_left_out(name: str, outcomes: Collection[tuple[str, str]]) -> str:
    """Return the reason not to start a pass after the outcomes of earlier ones; empty to start it.

    After a failure the others would fail as well; after out of memory some still give results.
    """
    for other, outcome in outcomes:
        if outcome in STOPPING:
            return f"the {other} pass {STOPPING[outcome]}"
    for other, outcome in outcomes:
        if outcome == "oom" and not PASSES[name].after_oom:
            return f"the {other} pass ran out of memory"
    return ""
