"""The memory pass over every kind of step, precision and attention: it closes, as predicted.

What is really alive is counted in another run, by other means: see ``live_bytes.py``. A library
takes memory of its own by the CPU's instructions, so some are measured under each set that this
machine has, in processes of their own: oneDNN reads its limit once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from sysbench.core.machine.devices import LADDER, LIMITS, cpu_flags, has_own_products
from sysbench.core.memory.predicted import ADDED
from sysbench.core.record.memory import LIBRARY_WORKSPACE
from sysbench.core.record.record import LedgerRow, Memory
from sysbench.core.spec.spec import RunSpec, StepKind
from tests.drawn import pairwise, some_of

SCRIPT = Path(__file__).with_name("memory_cases.py")

CLOSES_WITHIN = 0.005
PREDICTED_WITHIN = 0.02

STEPS = get_args(StepKind)
PRECISIONS = ("fp32", "bf16", "bf16-pure")
ATTENTIONS = ("naive", "sdpa", "sdpa-math")
TWELVE_MILLION: dict[str, Any] = {
    "vocab": 4096,
    "d_model": 512,
    "d_ff": 2048,
    "layers": 2,
    "heads": 8,
}
LARGE = (("train", "fp32", "naive"), ("inference", "bf16", "sdpa"))


class Live(NamedTuple):
    """Bytes counted in a steady step; ``forward_end`` is of steps that go on to a loss."""

    peak: int
    forward_end: int | None
    end: int


class Case(msgspec.Struct):
    """Result of the memory pass, and counted bytes."""

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
        **TWELVE_MILLION,
        batch=2,
        context=16,
        step=step,
        precision=precision,
        attention=attention,
        device="cpu",
    )


DRAWN = [
    *pairwise("memory closes", STEPS, PRECISIONS, ATTENTIONS),
    # The tensors of fp16 have the sizes of bf16's.
    *((step, "fp16", "naive") for step in some_of("memory closes in fp16", STEPS, 1)),
]
SPECS = {"-".join(settings): small(*settings) for settings in DRAWN}
SPECS |= {f"12M-{'-'.join(settings)}": large(*settings) for settings in LARGE}


# Those of all precisions, kinds of products and steps that libraries treat in different ways.
UNDER_EACH = {
    "inference-fp16-naive": small("inference", "fp16", "naive"),
    "inference-bf16-sdpa": small("inference", "bf16", "sdpa").changed(context=96),
    "forward-bf16-pure-sdpa-math": small("forward", "bf16-pure", "sdpa-math"),
    "forward+backward-bf16-pure-naive": small("forward+backward", "bf16-pure", "naive"),
    "train-fp32-sdpa": small("train", "fp32", "sdpa"),
}
_AVAILABLE = [
    name
    for name in ("AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX")
    if dict(LADDER)[name] <= cpu_flags()
]
INSTRUCTIONS = list(dict.fromkeys([*_AVAILABLE[:1], *_AVAILABLE[-1:]]))
"""Lowest and highest set of this machine among those that oneDNN has kernels of their own for."""

Cases = Callable[[str], dict[str, Case]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """Cases by name, measured under a limit to oneDNN; no limit if empty."""
    folder = tmp_path_factory.mktemp("cases")
    log = folder / "stderr"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        @cache
        def measure(limit: str) -> dict[str, Case]:
            assert process.stdin is not None and process.stdout is not None
            asked = UNDER_EACH if limit else SPECS
            results = folder / f"results{limit}.json"
            request = {
                "specs": list(asked.values()),
                "environment": {LIMITS[0]: limit} if limit else {},
                "results": str(results),
            }
            process.stdin.write(msgspec.json.encode(request).decode() + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", log.read_text()
            found = msgspec.json.decode(results.read_bytes(), type=list[Case])
            return dict(zip(asked, found, strict=True))

        yield measure


@pytest.fixture(
    params=[
        *(pytest.param(("", name), id=name) for name in SPECS),
        *(
            pytest.param((limit, name), id=f"{name}-{limit}")
            for limit in INSTRUCTIONS
            for name in UNDER_EACH
        ),
    ]
)
def case(request: pytest.FixtureRequest, cases: Cases) -> Case:
    limit, name = request.param
    return cases(limit)[name]


def test_the_ledger_holds_what_is_really_alive_at_the_peak(case: Case) -> None:
    assert total(case.memory.ledger) == case.memory.peak_allocated_bytes
    workspace = sum(row.bytes for row in case.memory.ledger if row.name == LIBRARY_WORKSPACE)
    assert 0 <= case.memory.library_workspace_bytes <= workspace
    assert case.memory.tensor_peak_bytes == pytest.approx(case.live.peak, rel=CLOSES_WITHIN)


def test_the_columns_hold_what_is_alive_at_their_moments(case: Case) -> None:
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


def test_every_row_above_a_hundredth_of_the_peak_is_the_predicted_one(case: Case) -> None:
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


@pytest.mark.parametrize("limit", INSTRUCTIONS)
@pytest.mark.parametrize("name", [name for name in UNDER_EACH if not name.endswith("sdpa")])
def test_products_take_workspace_where_onednn_computes_them(
    name: str, limit: str, cases: Cases
) -> None:
    # A fused attention always takes some, so that it would say nothing here.
    held = cases(limit)[name].memory.timeline.categories.get(LIBRARY_WORKSPACE, [])
    assert any(held) == has_own_products(limit, UNDER_EACH[name].precision_row.compute)


@pytest.mark.parametrize("name", UNDER_EACH)
def test_tensors_peak_alike_under_all_instructions(name: str, cases: Cases) -> None:
    assert len({cases(limit)[name].memory.tensor_peak_bytes for limit in INSTRUCTIONS}) <= 1
