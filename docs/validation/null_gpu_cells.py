"""The model of CUDA's caching allocator against PyTorch's own, on 205 cells.

``python docs/validation/null_gpu_cells.py`` prints the table of ``null-gpu.md``. What PyTorch
2.12.0 (cu130) allocated and reserved in the memory pass of each cell is in ``null_gpu_cells.csv``,
from a null GPU: an "H100 80GB" of 81,008 MiB, 526 of them for the context, whose kernels compute
nothing. The allocator, autograd, autocast and the optimizers are PyTorch's. Each cell is predicted
from a dry run on meta tensors, played to the model of the allocator with the same memory.
"""

from __future__ import annotations

import csv
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sysbench.core.estimate.allocator_settings import MIB
from sysbench.core.estimate.exact import canonical_spec
from sysbench.core.estimate.libraries import workspace_bytes
from sysbench.core.estimate.requests import Held, held_by
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run import initialising
from sysbench.core.worker.dry_run.child import quick_prediction

CELLS = Path(__file__).with_name("null_gpu_cells.csv")
AXES = ("model", "context", "step", "precision", "attention")
CAPACITY = (81_008 - 526) * MIB
ALLOCATED_WITHIN, RESERVED_WITHIN = 0.001, 0.01


class Compared(NamedTuple):
    """A cell as measured and as predicted; amounts in MiB."""

    cell: dict[str, str]
    allocated: float
    reserved: int
    held: Held

    @property
    def allocated_error(self) -> float:
        """Predicted over measured, less one."""
        return self.held.allocated_bytes / MIB / self.allocated - 1

    @property
    def reserved_error(self) -> float:
        """Predicted over measured, less one."""
        return self.held.reserved_bytes / MIB / self.reserved - 1

    @property
    def agrees(self) -> bool:
        """Whether both ran out of memory, or both amounts are within their bounds."""
        if self.cell["refused"] or self.held.shortage is not None:
            return bool(self.cell["refused"]) == (self.held.shortage is not None)
        return (
            abs(self.allocated_error) <= ALLOCATED_WITHIN
            and abs(self.reserved_error) <= RESERVED_WITHIN
        )


def compared(cell: dict[str, str]) -> Compared:
    """Predict a cell."""
    settings = {name: cell[name] for name in AXES}
    settings["model"] = f"cs336-2025/{cell['model']}"
    spec = RunSpec(device="cuda:0", batch=4).changed(**settings | {"context": int(cell["context"])})
    requests = quick_prediction(canonical_spec(spec)).requests
    assert requests is not None
    held = held_by(requests, workspace_bytes("9.0"), capacity_bytes=CAPACITY)
    return Compared(cell, float(cell["allocated_mib"]), int(cell["reserved_mib"]), held)


def lines(rows: list[Compared]) -> Iterator[str]:
    """The table, and what it comes to."""
    yield f"| {' | '.join(AXES)} | allocated MiB | predicted | reserved MiB | predicted | |"
    yield "|---" * (len(AXES) + 5) + "|"
    for row in rows:
        cell, held = row.cell, row.held
        names = " | ".join(cell[name] for name in AXES)
        if held.shortage is not None or cell["refused"]:
            told = "fits" if held.shortage is None else "runs out"
            measured = "runs out" if cell["refused"] else "fits"
            amounts = f"{measured} | {told} | {row.reserved} | {held.reserved_bytes // MIB}"
        else:
            amounts = (
                f"{row.allocated:.1f} | {row.allocated_error:+.3%} "
                f"| {row.reserved} | {row.reserved_error:+.2%}"
            )
        yield f"| {names} | {amounts} | {'' if row.agrees else 'off'} |"
    finished = [row for row in rows if row.held.shortage is None and not row.cell["refused"]]
    exact = sum(round(row.held.reserved_bytes / MIB) == row.reserved for row in finished)
    yield ""
    yield (
        f"{sum(row.agrees for row in rows)} of {len(rows)} cells agree: allocated within "
        f"{ALLOCATED_WITHIN:.1%}, reserved within {RESERVED_WITHIN:.0%}, or out of memory in both. "
        f"Reserved to the MiB in {exact}. Largest differences: allocated "
        f"{max(abs(row.allocated_error) for row in finished):.3%}, reserved "
        f"{max(abs(row.reserved_error) for row in finished):.2%}."
    )


def main() -> int:
    """Print the table; 1 if a cell does not agree."""
    # All values of a null GPU are zero: no weight is outside of its bounds.
    initialising.OUTSIDE = 0.0
    gc.disable()  # a collection would free storages where a step frees none
    with CELLS.open() as file:
        rows = [compared(cell) for cell in csv.DictReader(file)]
    print("\n".join(lines(rows)))
    return 0 if all(row.agrees for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
