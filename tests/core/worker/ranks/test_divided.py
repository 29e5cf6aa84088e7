"""Predicted memory of single ranks: what their divisions add up to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sysbench.core.predict.dry_run_client import (
    Estimator,
    ExactPrediction,
    TrainingVariant,
    canonical_spec,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.worker.ranks.pipeline import actions

SIZE = {"vocab": 256, "d_model": 64, "d_ff": 128, "heads": 4, "layers": 4}
PARAMETERS = 2 * 256 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.fixture(scope="module")
def exact() -> Iterator[Estimator]:
    with Estimator() as estimator:
        yield estimator


def played(exact: Estimator, text: str, rank: int = 0) -> ExactPrediction:
    settings = {"model": "", "device": "cpu", "batch": 4, "context": 32, **SIZE}
    variant = TrainingVariant(world=World.parse(text), rank=rank)
    return exact.predict(canonical_spec(RunSpec(**settings)), variant=variant)  # type: ignore[arg-type]


def rows(prediction: ExactPrediction, phase: str = "optimizer") -> dict[str, int]:
    (found,) = (one for one in prediction.phases if one.phase == phase)
    return {row.name: row.bytes for row in found.ledger}


def test_layers_are_divided_and_norms_are_not(exact: Estimator) -> None:
    norms = 4 * 2 * 64 + 64
    alone = 4 * ((PARAMETERS - norms) // 2 + norms)
    assert rows(played(exact, "tp=2"))["parameters"] == alone
    assert rows(played(exact, "dp=2,tp=2"))["parameters"] == alone // 2


def test_buckets_hold_each_gradient_once_more(exact: Estimator) -> None:
    found = rows(played(exact, "dp=4,data=ddp"))
    assert found["communication buffers"] == found["gradients"] == 4 * PARAMETERS


def test_stages_hold_what_their_schedule_keeps(exact: Estimator) -> None:
    first, last = (played(exact, "pp=2,microbatches=4", rank) for rank in range(2))
    held = [rows(one)["parameters"] for one in (first, last)]
    assert sum(held) == 4 * PARAMETERS
    assert held[1] - held[0] == 4 * 64  # the last norm
    received = 4 * 4 * 32 * 64  # float32 of all micro-batches
    assert rows(first)["communication buffers"] == received
    # Two micro-batches before the first backward; then all four.
    in_flight = rows(first, "backward")["activations"]
    all_first = played(exact, "pp=2,microbatches=4,schedule=gpipe")
    assert rows(all_first, "backward")["activations"] > 1.5 * in_flight
    assert first.peak_bytes < all_first.peak_bytes


@pytest.mark.parametrize("count", [4, 7])
def test_every_micro_batch_goes_forward_before_its_backward(count: int) -> None:
    for schedule, most in (("gpipe", count), ("1f1b", 3)):
        alive, done = set[int](), []
        for is_forward, index in actions(schedule, 3, count):  # type: ignore[arg-type]
            if is_forward:
                alive.add(index)
                assert len(alive) <= most
            else:
                alive.remove(index)
                done.append(index)
        assert done == [*range(count)] and not alive
