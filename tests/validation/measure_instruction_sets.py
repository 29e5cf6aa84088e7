"""The table of ``instruction_sets.md``: memory on the CPU under each of oneDNN's sets.

``python -m tests.validation.measure_instruction_sets`` prints it. Every set that this CPU has
runs in a process of its own, because oneDNN reads the limit when it is first used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.machine.devices import LADDER, LIMITS, cpu_flags
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.record import Memory
from sysbench.core.spec.choices import AttentionName, PrecisionName
from sysbench.core.spec.spec import RunSpec, StepKind

CASES = Path(__file__).parents[1] / "core" / "worker" / "memory" / "memory_cases.py"
SETS = ("AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"model": "tiny", "context": 64},
    "30M": {
        **{"vocab": 4096, "d_model": 512, "d_ff": 2048, "layers": 6, "heads": 8},
        "context": 32,
    },
}
PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "fp16", "bf16-pure")
STEPS: tuple[StepKind, ...] = ("inference", "train")
ATTENTIONS: tuple[AttentionName, ...] = ("naive", "sdpa")


class Result(msgspec.Struct):
    """What the memory pass said, and the bytes counted alive at the peak by other means."""

    memory: Memory
    live: tuple[int, int | None, int]


def specs() -> dict[tuple[str, str, str, str], RunSpec]:
    """Every cell of the table."""
    return {
        (size, step, precision, attention): RunSpec(
            **dimensions,
            batch=2,
            device="cpu",
            step=step,
            precision=precision,
            attention=attention,
        )
        for size, dimensions in SIZES.items()
        for step in STEPS
        for precision in PRECISIONS
        for attention in ATTENTIONS
    }


def measured(name: str, cells: list[RunSpec]) -> list[Result]:
    """The cells in a process under that limit."""
    with tempfile.TemporaryDirectory() as folder:
        answered = Path(folder, "results.json")
        request = {"specs": cells, "environment": {LIMITS[0]: name}, "results": str(answered)}
        subprocess.run(
            [sys.executable, "-P", str(CASES)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            input=msgspec.json.encode(request),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return msgspec.json.decode(answered.read_bytes(), type=list[Result])


def main() -> None:
    """Measure and print."""
    needs = dict(LADDER)
    here = [name for name in SETS if needs[name] <= cpu_flags()]
    print(f"{cpu_model()}; torch {version('torch')}; sets: {', '.join(here)}\n")
    print("| set | model | step | precision | attention | ledger / count | prediction | library |")
    print("|---|---|---|---|---|---:|---:|---:|")
    cells = specs()
    worst = [0.0, 0.0]
    for name in here:
        for key, result in zip(cells, measured(name, list(cells.values())), strict=True):
            memory = result.memory
            peak = memory.tensor_peak_bytes
            assert memory.predicted_peak_bytes is not None
            alive, predicted = peak / result.live[0] - 1, memory.predicted_peak_bytes / peak - 1
            library = memory.library_workspace_bytes / peak
            worst = [max(worst[0], abs(alive)), max(worst[1], abs(predicted))]
            row = [name, *key, f"{alive:+.4%}", f"{predicted:+.3%}", f"{library:+.2%}"]
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"\nWorst: {worst[0]:.4%} of the count, {worst[1]:.3%} of the prediction.")


if __name__ == "__main__":
    main()
