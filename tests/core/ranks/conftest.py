"""Ranks as summaries, written by hand on a true clock and put onto clocks of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sysbench.core.trace.rank_summary import RankTrace, StepPart, TracedCall

EPOCH_NS = 1_790_000_000_000_000_000
MakeRank = Callable[..., RankTrace]


@pytest.fixture
def make_rank() -> MakeRank:
    """``make_rank([(start, end)…], work=[(start, end)…], ahead=0)``: an all-reduce each, and the
    intervals in which it computed; times on the true clock. ``kinds``, ``positions`` and ``steps``
    are by call."""

    def make(
        calls: list[tuple[int, int]],
        work: list[tuple[int, int]] | None = None,
        *,
        ahead: int = 0,
        low: int = 0,
        high: int | None = None,
        kinds: list[str] | None = None,
        positions: list[int] | None = None,
        steps: list[int] | None = None,
        parts: list[tuple[int, int, int]] | None = None,
        group: str = "0",
        size: int | None = 4000,
    ) -> RankTrace:
        base = EPOCH_NS + ahead
        high = max(end for _, end in calls) if high is None else high
        bounds = np.array(work or [], dtype=np.int64).reshape(-1, 2) + base
        packed = bounds[:, 0].tobytes() + bounds[:, 1].tobytes()
        return RankTrace(
            rank=None,
            world_size=None,
            source="kernels",
            device=0,
            other_devices=[],
            low_ns=low + base,
            high_ns=high + base,
            steps=[StepPart(number, a + base, b + base) for number, a, b in parts or []],
            calls=[
                TracedCall(
                    kind=kinds[index] if kinds else "all-reduce",
                    bytes=size,
                    group_size=2,
                    group=group,
                    position=positions[index] if positions else -1,
                    step=steps[index] if steps else -1,
                    start_ns=start + base,
                    end_ns=end + base,
                )
                for index, (start, end) in enumerate(calls)
            ],
            computing=packed,
            working=packed,
        )

    return make
