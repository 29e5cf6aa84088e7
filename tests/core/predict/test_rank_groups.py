"""Groups of ranks whose memory a prediction can tell apart."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.dry_run_client import ExactPrediction, RankPrediction
from sysbench.core.predict.layout_plan import group_ranks, why_worst
from sysbench.core.record.record import LedgerRow
from sysbench.core.spec.spec import RunSpec

BASE = predict(RunSpec(device="cpu"))


def rank_of(rank: int, activations: int, alike: int = 1) -> RankPrediction:
    prediction = ExactPrediction(
        **{name: getattr(BASE, name) for name in BASE.__struct_fields__}
        | {
            "ledger": [LedgerRow("parameters", 100), LedgerRow("activations", activations)],
            "peak_bytes": 100 + activations,
        },
        phases=[],
        block_ledger=None,
    )
    return RankPrediction(rank=rank, coordinates={}, alike=alike, prediction=prediction)


@given(needs=st.lists(st.integers(1, 10**12), min_size=1, max_size=20))
def test_groups_have_every_rank_once_and_differ_by_more_than_the_error(needs: list[int]) -> None:
    groups = group_ranks([rank_of(*pair) for pair in enumerate(needs)])
    ranks = [one.rank for group in groups for one in group.ranks]
    assert sorted(ranks) == [*range(len(needs))]
    for group in groups:
        assert [one.rank for one in group.ranks] == sorted(one.rank for one in group.ranks)
        least = min(one.needed_bytes for one in group.ranks)
        assert least >= 0.99 * group.worst.needed_bytes
    worst = [group.worst.needed_bytes for group in groups]
    assert all(later < 0.99 * sooner for sooner, later in pairwise(worst))


def test_the_reason_names_what_the_worst_rank_has_more_of() -> None:
    first, other = rank_of(0, 10_000), rank_of(4, 5_000, alike=4)
    assert "Rank 0 needs most" in why_worst(group_ranks([other, first]))
    assert "4.88 KiB more activations than rank 4" in why_worst(group_ranks([other, first]))
    equal = why_worst(group_ranks([first, rank_of(1, 9_990, alike=3)]))
    assert equal.startswith("All 4 ranks need the same within 1 %")
