"""Copies of one file: direction, host memory, bytes and bandwidth."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sysbench.core.record.steps import TracedCopy
from sysbench.core.trace.kernel_names import CopyKind, copy_kind
from sysbench.core.trace.time_ledger import TimeLedger


def copy_rows(ledger: TimeLedger) -> list[TracedCopy]:
    """Sum the device's copies by direction and host memory, longest first."""
    if ledger.source != "kernels":
        return []
    work = ledger.work
    groups: defaultdict[CopyKind, list[int]] = defaultdict(list)
    for name in np.unique(work.name).tolist():
        if (kind := copy_kind(ledger.names[name])) is not None:
            groups[kind] += np.flatnonzero(work.name == name).tolist()
    rows = [_row(ledger, kind, np.array(pieces)) for kind, pieces in groups.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _row(ledger: TimeLedger, kind: CopyKind, pieces: np.ndarray) -> TracedCopy:
    work = ledger.work
    total_ns = int((work.end[pieces] - work.start[pieces]).sum())
    # A copy that the window cuts has several pieces or a shorter one, and its bytes once.
    _, first = np.unique(work.call[pieces], return_index=True)
    sizes = work.bytes[pieces[first]]
    known = int(sizes.sum()) if (sizes >= 0).all() else None
    return TracedCopy(
        direction=kind.direction,
        memory=kind.memory,
        calls=len(first),
        total_ns=total_ns,
        exposed_ns=int(ledger.exclusive[pieces].sum()),
        bytes=known,
        gbs=known / total_ns if known is not None and total_ns else None,
    )
