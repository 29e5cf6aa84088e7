"""The difference of two runs, two files, or a run and a file, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sysbench.core.compare.bytes import memory_difference_tree
from sysbench.core.compare.difference_summary import memory_summary, time_summary
from sysbench.core.compare.nodes import Difference
from sysbench.core.compare.times import levels_of, time_difference
from sysbench.core.formatting import signed_percent
from sysbench.core.record.record import Kernels, Record


@dataclass(frozen=True, slots=True)
class Side:
    """One side: the record, and its kernels with a row for every layer where there are."""

    record: Record
    layers: Kernels | None = None

    @property
    def kernels(self) -> Kernels | None:
        """The kernels to compare: of the trace pass, else of the nsys pass."""
        if self.layers or self.record.kernels:
            return self.layers or self.record.kernels
        return self.record.nsys.kernels if self.record.nsys else None


def difference(a: Side, b: Side) -> Difference:
    """B against A, row by row, in time and in memory."""
    missing = {}
    time = memory = None
    summary: list[str] = []
    notes: list[str] = []
    if a.kernels and b.kernels:
        time = time_difference(a.kernels, b.kernels)
        summary += time_summary(time)
        notes += _notes(a.kernels, b.kernels, a.record, b.record)
    else:
        missing["time"] = _without("trace pass", a, a.kernels, b.kernels)
    if a.record.memory and b.record.memory:
        memory = memory_difference_tree(a.record.memory, b.record.memory)
        summary.append(memory_summary(memory))
    else:
        missing["memory"] = _without("memory pass", a, a.record.memory, b.record.memory)
    return Difference(summary=summary, time=time, memory=memory, notes=notes, missing=missing)


def _without(what: str, side: Side, a: object, b: object) -> str:
    if a is None and b is None:
        return f"neither {'run' if side.record.spec else 'file'} has a {what}"
    return f"{'A' if a is None else 'B'} has no {what}"


def _notes(a: Kernels, b: Kernels, *records: Record) -> Iterator[str]:
    """Differences that move the rows other than the work itself."""
    yield from levels_of(a, b).notes
    if a.source != b.source:
        yield f"A's rows are {a.source}, B's are {b.source}: the same work has other names"
    if a.whole != b.whole:
        yield f"A is a {a.whole}, B a {b.whole}, in which the number of steps is not known"
    elif a.whole == "span":
        yield "both are spans: how many steps are in them is not known"
    slowed = [
        f"{name} by {signed_percent(kernels.perturbation - 1)}"
        for name, kernels in (("A", a), ("B", b))
        if kernels.perturbation is not None
    ]
    if slowed:
        yield f"tracing changed the step of {' and of '.join(slowed)}"
    medians = [record.timing.step.median_ms for record in records if record.timing]
    if len(medians) == len(records):
        change_ms = medians[1] - medians[0]
        yield f"the rows are of the traced step; the untraced one changed by {change_ms:+.3f} ms"
