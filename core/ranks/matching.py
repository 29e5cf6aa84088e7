"""Match calls of the same collective in the files of several ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sysbench.core.trace.rank_summary import RankTrace, TracedCall
from sysbench.core.trace.trace_events import NONE

SYNCHRONISING = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "barrier")
"""Kinds in which every rank needs data of every other: none can end before all have come."""
UNEVEN = ("all-to-all", "barrier")
"""Kinds whose bytes may differ between ranks."""


class _Key(NamedTuple):
    group: str
    kind: str
    bytes: int | None
    step: int | None
    position: int | None


@dataclass(frozen=True, slots=True)
class Match:
    """One collective with the calls of at least two ranks."""

    kind: str
    bytes: int | None
    group: str
    group_size: int | None
    calls: Mapping[int, TracedCall]

    @property
    def is_synchronising(self) -> bool:
        return self.kind in SYNCHRONISING


def match_collectives(ranks: Mapping[int, RankTrace]) -> list[Match]:
    """Return the collectives found in at least two files, in the order of the lowest rank's clock.

    Calls of one group, kind and size are matched by their number in the group; without numbers, by
    their order in marked steps of the same number; without steps, by their order in the file. Calls
    outside all steps are excluded, as are calls whose count differs between ranks: it is unknown
    which one is missing.
    """
    found: defaultdict[_Key, dict[int, list[TracedCall]]] = defaultdict(dict)
    numbered = _numbered(ranks)
    have_steps = any(trace.steps for trace in ranks.values())
    for rank, trace in ranks.items():
        for call in trace.calls:  # in the order of their start
            if have_steps and call.step == NONE and call.group not in numbered:
                continue
            key = _key(call, numbered=call.group in numbered)
            found[key].setdefault(rank, []).append(call)
    matches = []
    for key, by_rank in found.items():
        if len(by_rank) < 2 or len({len(calls) for calls in by_rank.values()}) > 1:
            continue
        for calls in zip(*by_rank.values(), strict=True):
            sizes = {call.group_size for call in calls}
            matches.append(
                Match(
                    kind=key.kind,
                    bytes=key.bytes,
                    group=key.group,
                    group_size=sizes.pop() if len(sizes) == 1 else None,
                    calls=dict(zip(by_rank, calls, strict=True)),
                )
            )
    return sorted(matches, key=lambda match: min(match.calls.items())[1].start_ns)


def _numbered(ranks: Mapping[int, RankTrace]) -> set[str]:
    """Return the groups whose calls all have a number on all ranks."""
    calls = [call for trace in ranks.values() for call in trace.calls]
    return {call.group for call in calls} - {call.group for call in calls if call.position == NONE}


def _key(call: TracedCall, *, numbered: bool) -> _Key:
    return _Key(
        group=call.group,
        kind=call.kind,
        bytes=None if call.kind in UNEVEN else call.bytes,
        step=None if numbered else call.step,
        position=call.position if numbered else None,
    )
