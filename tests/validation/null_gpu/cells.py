"""The model of CUDA's caching allocator against PyTorch's own, on 205 cells.

``make gpu-check`` holds a real GPU against the amounts of ``null_gpu/cells.csv``; random shapes are
in `sweep`. ``python -m tests.validation.null_gpu.cells`` prints how many agree and which do not;
``--measure`` first runs the cells that have no bytes yet on the null GPU of `tests/null_gpu`, as an
"H100 80GB" of 81,008 MiB, 526 of them for the context, whose kernels compute nothing. ``--every N``
takes every N-th cell. The allocator, autograd, autocast and the optimizers are PyTorch's. Every
cell has a process of its own, forked from one that has imported torch and not yet opened CUDA. In
it the cell is also predicted, from a dry run on meta tensors, played to the model of the allocator
with the same memory.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.predict.allocator_settings import MIB
from sysbench.core.spec.spec import RunSpec
from tests.validation.null_gpu.page import ROOT, null_gpu, read_table, write_table

CELLS = Path(__file__).with_name("cells.csv")
AXES = ("model", "context", "step", "precision", "attention")
CAPACITY = (81_008 - 526) * MIB
ALLOCATED_WITHIN, RESERVED_WITHIN = 0.001, 0.01
CHILD = "--child"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the file: a spec, and what it held in the third step, measured and predicted.

    Attributes:
        torch: The version that was measured; empty where the cell was not.
        refused: Phase in which memory ran out; the amounts are those until there.
        told_refused: The same, predicted.
    """

    model: str
    context: int
    step: str
    precision: str
    attention: str
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    refused: str = ""
    told_allocated_bytes: int = 0
    told_reserved_bytes: int = 0
    told_refused: str = ""
    torch: str = ""

    @property
    def spec(self) -> RunSpec:
        """The cell's spec: batch 4, adamw-foreach."""
        settings = {name: getattr(self, name) for name in AXES}
        settings["model"] = f"cs336-2025/{self.model}"
        return RunSpec(device="cuda:0", batch=4).changed(**settings)

    @property
    def is_finished(self) -> bool:
        """Whether memory ran out in neither."""
        return not self.refused and not self.told_refused

    @property
    def allocated_error(self) -> float:
        """Predicted over measured, less one."""
        return self.told_allocated_bytes / self.allocated_bytes - 1

    @property
    def reserved_error(self) -> float:
        """Predicted over measured, less one."""
        return self.told_reserved_bytes / self.reserved_bytes - 1

    @property
    def is_exact(self) -> bool:
        """Whether both amounts are predicted to the byte."""
        return self.is_finished and not (self.allocated_error or self.reserved_error)

    @property
    def agrees(self) -> bool:
        """Whether both ran out of memory in one phase, or both amounts are within bounds."""
        if not self.is_finished:
            return self.refused == self.told_refused
        return (
            abs(self.allocated_error) <= ALLOCATED_WITHIN
            and abs(self.reserved_error) <= RESERVED_WITHIN
        )


def measure(cells: list[Cell], every: int) -> None:
    """Fill in the cells that were not measured, the file after each."""
    with null_gpu() as (python, environment):
        child = subprocess.Popen(
            [python, "-m", "tests.validation.null_gpu.cells", CHILD],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None
        for index in range(0, len(cells), every):
            if cells[index].torch:
                continue
            child.stdin.write(msgspec.json.encode(cells[index]) + b"\n")
            child.stdin.flush()
            cells[index] = msgspec.json.decode(child.stdout.readline(), type=Cell)
            write_table(CELLS, cells)
            print(index + 1, *msgspec.to_builtins(cells[index]).values(), flush=True)
        child.stdin.close()
        if child.wait():
            raise SystemExit(f"the process that measures ended with {child.returncode}")


def answer_cells() -> int:
    """Answer each line of the input, a cell, with its amounts from a process of its own."""
    from sysbench.core.worker import boot as setup  # noqa: F401
    from sysbench.core.worker.dry_run import exact  # noqa: F401

    for line in sys.stdin.buffer:
        cell = msgspec.json.decode(line, type=Cell)
        answer, into = os.pipe()
        pid = os.fork()
        if not pid:
            whole = msgspec.structs.replace(cell, **measured(cell.spec), **predicted(cell.spec))
            os.write(into, msgspec.json.encode(whole) + b"\n")
            os._exit(0)
        os.close(into)
        with os.fdopen(answer, "rb") as pipe:
            reported = pipe.read()
        if os.waitpid(pid, 0)[1] or not reported:
            return 1
        sys.stdout.buffer.write(reported)
        sys.stdout.flush()
    return 0


def measured(spec: RunSpec) -> dict[str, Any]:
    """What the device held in the third step, by the names of a `Cell`."""
    import torch

    from sysbench.core.predict.requests import WARMUP_STEPS
    from sysbench.core.worker.boot import prepare_torch
    from sysbench.core.worker.failures import ran_out_of_memory
    from sysbench.core.worker.workloads.make_workload import make_workload

    phases = ["build"]
    prepare_torch(spec)
    assert torch.cuda.memory_reserved() == 0
    try:
        workload = make_workload(spec)
        for _ in range(WARMUP_STEPS + 1):
            torch.cuda.reset_peak_memory_stats()
            workload.step(phases.append)
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        refused = phases[-1]
    else:
        refused = ""
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "refused": refused,
        "torch": str(torch.__version__),
    }


def predicted(spec: RunSpec) -> dict[str, Any]:
    """What the model of the allocator holds for its dry run, by the names of a `Cell`."""
    from sysbench.core.predict.dry_run_client import canonical_spec
    from sysbench.core.predict.requests import replay_requests
    from sysbench.core.predict.sizes import workspace_bytes
    from sysbench.core.worker.dry_run.exact import exact_prediction

    gc.collect()
    gc.disable()  # a collection would free storages where a step frees none
    requests = exact_prediction(canonical_spec(spec)).requests
    assert requests is not None
    held = replay_requests(requests, workspace_bytes("9.0"), capacity_bytes=CAPACITY)
    return {
        "told_allocated_bytes": held.allocated_bytes,
        "told_reserved_bytes": held.reserved_bytes,
        "told_refused": "" if held.shortage is None else held.shortage.phase,
    }


def lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Each cell that does not agree, and what all come to."""
    for cell in cells:
        if not cell.agrees:
            yield f"off: {' '.join(map(str, msgspec.to_builtins(cell).values()))}"
    finished = [cell for cell in cells if cell.is_finished]
    exact = sum(cell.is_exact for cell in cells)
    yield (
        f"{sum(cell.agrees for cell in cells)} of {len(cells)} cells agree: allocated within "
        f"{ALLOCATED_WITHIN:.1%} and reserved within {RESERVED_WITHIN:.0%}, or out of memory in "
        f"both, in the same phase ({len(cells) - len(finished)} cells). Of the others {exact} are "
        f"exact to the byte in both. torch {', '.join(sorted({cell.torch for cell in cells}))}."
    )


def main() -> int:
    """Measure what is asked for; 1 if a cell does not agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run the cells that have no bytes")
    parser.add_argument("--every", type=int, default=1, help="only every N-th cell")
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return answer_cells()
    cells = read_table(CELLS, Cell)
    if arguments.measure:
        measure(cells, arguments.every)
    measured = [cell for cell in cells if cell.torch]
    print("\n".join(lines(measured)))
    return 0 if all(cell.agrees for cell in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
