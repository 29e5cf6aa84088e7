"""Collectives of one file: kind, bytes, group and bandwidth, from the arguments of their kernels.

A rank that waits for another one is inside its kernel, so the time of one file is transfer and
waiting together, and every bandwidth is at least what is told. Bandwidths are those of nccl-tests
(doc/PERFORMANCE.md): algorithm bandwidth is bytes over time, bus bandwidth that times a factor of
the kind, which makes it comparable with the link whatever the number of ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from sysbench.core.record.steps import TracedCollective
from sysbench.core.trace.classify import classify
from sysbench.core.trace.time_ledger import TimeLedger
from sysbench.core.trace.trace_events import NONE, CollectiveCall, occurring

KINDS = (
    ("all-reduce", r"all_?reduce|cross_device_reduce|(one|two)_?shot"),
    ("reduce-scatter", r"reduce_?scatter"),
    ("all-gather", r"all_?gather"),
    ("all-to-all", r"all_?to_?all|(?<![a-z])a2a(?![a-z])"),
    ("broadcast", r"broad_?cast"),
    ("send-receive", r"send_?recv|^_?(send|recv)$|p2p"),
    ("barrier", r"barrier"),
    ("reduce", r"(?<!all)(?<!all_)reduce(?!_?scatter)"),
)
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in KINDS]
DTYPE_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
"""By torch's names of its types; those of Float8 begin with it."""


class _Key(NamedTuple):
    kind: str
    bytes: int | None
    dtype: str
    group_size: int | None
    group: str
    ranks: str
    name: str


def kind_of(name: str) -> str:
    """The kind of collective by its name, of the call or of the kernel; else ``other``."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def collective_bytes(kind: str, call: CollectiveCall) -> int | None:
    """Bytes of a collective as nccl-tests counts them: of all ranks' parts where these differ."""
    width = 1 if call.dtype.startswith("Float8") else DTYPE_BYTES.get(call.dtype)
    if width is None or call.in_elements < 0 or call.out_elements < 0:
        return None
    ranks = max(call.group_size, 1)
    elements = {
        "all-gather": max(call.in_elements * ranks, call.out_elements),
        "reduce-scatter": max(call.in_elements, call.out_elements * ranks),
    }.get(kind, max(call.in_elements, call.out_elements))
    return elements * width


def bus_factor(kind: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None for a kind without one."""
    if ranks < 1:
        return None
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce", "send-receive") else None


def collective_rows(ledger: TimeLedger, calls: list[CollectiveCall]) -> list[TracedCollective]:
    """The device's collectives by kind, bytes and group, the longest first.

    Args:
        ledger: Of the device and the window; all times are sums over it.
        calls: The arguments that ``ledger.work.collective`` numbers.
    """
    if ledger.source != "kernels":
        return []
    work = ledger.work
    used = occurring(work.name)
    of_kind = [name for name in used.tolist() if classify(ledger.names[name]) == "communication"]
    pieces = np.flatnonzero(np.isin(work.name, of_kind) | (work.collective != NONE))
    groups: defaultdict[_Key, list[int]] = defaultdict(list)
    for piece, name, call in zip(
        pieces.tolist(), work.name[pieces].tolist(), work.collective[pieces].tolist(), strict=True
    ):
        groups[_key(ledger.names[name], calls[call] if call != NONE else None)].append(piece)
    rows = [_row(ledger, key, np.array(members)) for key, members in groups.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _key(name: str, call: CollectiveCall | None) -> _Key:
    if call is None:
        return _Key(kind_of(name), None, "", None, "", "", name)
    kind = kind_of(call.name)
    size = call.group_size if call.group_size > 0 else None
    return _Key(kind, collective_bytes(kind, call), call.dtype, size, call.group, call.ranks, name)


def _row(ledger: TimeLedger, key: _Key, pieces: np.ndarray) -> TracedCollective:
    durations = ledger.work.end[pieces] - ledger.work.start[pieces]
    total_ns, shortest_ns = int(durations.sum()), int(durations.min())
    mean_ns = total_ns / len(pieces)
    factor = None if key.group_size is None else bus_factor(key.kind, key.group_size)

    def rate(ns: float, times: float | None) -> float | None:
        if key.bytes is None or times is None or not ns:
            return None
        return key.bytes / ns * times

    return TracedCollective(
        kind=key.kind,
        bytes=key.bytes,
        dtype=key.dtype or None,
        group_size=key.group_size,
        group=key.group or None,
        ranks=key.ranks or None,
        name=key.name,
        calls=len(pieces),
        total_ns=total_ns,
        exposed_ns=int(ledger.exclusive[pieces].sum()),
        mean_ns=mean_ns,
        min_ns=shortest_ns,
        max_ns=int(durations.max()),
        algorithm_gbs=rate(mean_ns, 1.0),
        bus_gbs=rate(mean_ns, factor),
        best_bus_gbs=rate(shortest_ns, factor),
    )
