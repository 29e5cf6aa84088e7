"""The memory pass over every kind of step, precision and attention: it closes, as predicted.

What is really alive is counted in another run, by other means: see ``live_bytes.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from sysbench.core.analysis.memory.predicted import ADDED
from sysbench.core.record.memory import LIBRARY_WORKSPACE
from sysbench.core.record.record import LedgerRow, Memory
from sysbench.core.spec.spec import RunSpec, StepKind

SCRIPT = Path(__file__).with_name("memory_cases.py")

CLOSES_WITHIN = 0.005
PREDICTED_WITHIN = 0.02

STEPS = get_args(StepKind)
PRECISIONS = ("fp32", "bf16", "fp16", "bf16-pure")
ATTENTIONS = ("naive", "sdpa", "sdpa-math")
THIRTY_MILLION: dict[str, Any] = {
    "vocab": 4096,
    "d_model": 512,
    "d_ff": 2048,
    "layers": 6,
    "heads": 8,
}
LARGE = (("train", "fp32", "naive"), ("inference", "bf16", "sdpa"))


class Live(NamedTuple):
    """Bytes counted in a steady step; ``forward_end`` is of steps that go on to a loss."""

    peak: int
    forward_end: int | None
    end: int


class Case(msgspec.Struct):
    """What the memory pass said of a spec, and what was counted."""

    memory: Memory
    live: Live


def total(rows: list[LedgerRow]) -> int:
    return sum(row.bytes for row in rows)


def small(step: Any, precision: Any, attention: Any) -> RunSpec:
    return RunSpec(
        model="tiny",
        batch=2,
        context=32,
        step=step,
        precision=precision,
        attention=attention,
        device="cpu",
    )


def large(step: Any, precision: Any, attention: Any) -> RunSpec:
    return RunSpec(
        **THIRTY_MILLION,
        batch=2,
        context=16,
        step=step,
        precision=precision,
        attention=attention,
        device="cpu",
    )


SPECS = {
    f"{step}-{precision}-{attention}": small(step, precision, attention)
    for step in STEPS
    for precision in PRECISIONS
    for attention in ATTENTIONS
    if precision != "fp16" or attention == "naive"  # its tensors have the sizes of bf16's
} | {f"30M-{'-'.join(settings)}": large(*settings) for settings in LARGE}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """All of them, measured by one process."""
    folder = tmp_path_factory.mktemp("cases")
    specs, results = folder / "specs.json", folder / "results.json"
    specs.write_bytes(msgspec.json.encode(list(SPECS.values())))
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), str(specs), str(results)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(SPECS, msgspec.json.decode(results.read_bytes(), type=list[Case]), strict=True))


@pytest.fixture(params=SPECS)
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def test_the_ledger_holds_what_is_really_alive_at_the_peak(case: Case) -> None:
    assert total(case.memory.ledger) == case.memory.peak_allocated_bytes
    workspace = sum(row.bytes for row in case.memory.ledger if row.name == LIBRARY_WORKSPACE)
    assert 0 <= case.memory.library_workspace_bytes <= workspace
    assert case.memory.tensor_peak_bytes == pytest.approx(case.live.peak, rel=CLOSES_WITHIN)


def test_so_do_the_columns_beside_it(case: Case) -> None:
    columns = case.memory.columns
    assert total(columns["steady end"]) == case.live.end
    if case.live.forward_end is not None:
        assert total(columns["end of forward"]) == pytest.approx(
            case.live.forward_end, rel=CLOSES_WITHIN
        )


def test_the_peak_is_the_predicted_one(case: Case) -> None:
    memory = case.memory
    assert memory.predicted_peak_bytes == pytest.approx(
        memory.tensor_peak_bytes, rel=PREDICTED_WITHIN
    )


def test_so_is_every_row_that_makes_up_a_hundredth_of_it(case: Case) -> None:
    memory = case.memory
    *rows, peak = memory.reconciliation
    assert peak.name == "peak"
    assert sum(row.measured_bytes for row in rows) == memory.peak_allocated_bytes
    assert sum(row.predicted_bytes for row in rows) == memory.predicted_peak_bytes
    added = [row for row in rows if row.name == ADDED]
    assert sum(row.measured_bytes for row in added) == memory.library_workspace_bytes
    for row in (row for row in rows if row not in added):
        if row.measured_bytes > memory.peak_allocated_bytes / 100:
            assert row.error is not None, row
            assert abs(row.error) <= PREDICTED_WITHIN, row
