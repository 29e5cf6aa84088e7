"""Savings of single changes: every row is the prediction of a valid spec."""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.errors import SpecError, WorkerFailed
from sysbench.core.predict.closed_form import Prediction, predict
from sysbench.core.predict.savings import MIN_SHARE, savings_of
from sysbench.core.spec.spec import RunSpec

XL: dict[str, Any] = {"model": "cs336-2025/xl", "device": "cuda:0"}


@pytest.mark.parametrize(
    ("settings", "first", "absent"),
    [
        ({"context": 1024, "optimizer": "adamw-fused"}, "checkpoint", "checkpoint=8"),
        ({"context": 128}, "optimizer=sgd", "checkpoint"),  # its peak is in the optimizer
        ({"context": 128, "step": "inference", "batch": 1}, "precision", "optimizer"),
        ({"precision": "bf16-pure", "optimizer": "sgd", "attention": "sdpa"}, "", "precision"),
    ],
)
def test_each_row_is_the_prediction_of_a_spec_that_can_run(
    settings: dict[str, Any], first: str, absent: str
) -> None:
    spec = RunSpec(**XL, **settings)
    found = savings_of(spec, predict)
    assert found.peak_bytes == predict(spec).peak_bytes
    for row in found.savings:
        assert row.peak_bytes == predict(spec.changed(**row.settings)).peak_bytes
        assert row.saved_bytes == found.peak_bytes - row.peak_bytes
        assert row.saved_bytes >= MIN_SHARE * found.peak_bytes
    saved = [row.saved_bytes for row in found.savings]
    assert saved == sorted(saved, reverse=True)
    changes = [f"{key}={value}" for row in found.savings for key, value in row.settings.items()]
    assert "".join(changes[:1]).startswith(first)
    assert not any(change.startswith(absent) for change in changes)
    assert len({tuple(row.settings) for row in found.savings if "checkpoint" in row.settings}) <= 1


def test_what_cannot_be_predicted_is_named_and_ends_nothing() -> None:
    def predict_exactly(spec: RunSpec) -> Prediction:
        if spec.precision != "fp32":
            raise WorkerFailed("exact mode cannot run this step: of its own")
        return predict(spec)

    found = savings_of(RunSpec(**XL), predict_exactly)
    assert found.unknown == {"precision": "exact mode cannot run this step: of its own"}
    assert found.refused.keys() == {"precision=bf16", "precision=bf16-pure"}
    assert any(
        remark.startswith("not predicted, precision=bf16, precision=bf16-pure: exact mode")
        for remark in found.remarks
    )
    assert {"optimizer": "sgd"} in [row.settings for row in found.savings]
    with pytest.raises(SpecError, match=r"--savings = True: not for this spec: torch\.compile"):
        savings_of(RunSpec(**XL, compile="default"), predict)
