"""An nsys export in the form of a chrome trace, so that both are accounted for alike."""

from __future__ import annotations

import re

import numpy as np

from .nsys.events import Events, joined
from .trace.events import NONE, DeviceEvents, HostEvents, Kind, Trace

OPERATOR_FACTS = re.compile(r", (seq|op_id|sizes) = (\d{0,18})")
"""What torch's emit_nvtx writes behind an operator's name: it differs from call to call."""
OPERATOR = re.compile(r"[a-z_][a-z0-9_]*::\w")
"""A namespace in small letters: aten::mm, c10d::allreduce_. FSDP::forward is a range."""


def trace_of(events: Events) -> Trace:
    """The ranges and calls as host events; kernels, graphs, copies and fills as device events.

    Ranges that torch's emit_nvtx made around operators are operators again, with the number
    by which a backward node finds the operator that made it.
    """
    ranges, calls = events.ranges, events.calls
    work = joined([events.work, events.graphs])
    names = _Names(events)
    return Trace(
        names=list(names.numbers),
        base_ns=events.base_ns,
        host=HostEvents(
            kind=np.r_[names.kind[ranges.name], calls.kind],
            name=names.number[np.r_[ranges.name, calls.name]],
            thread=np.r_[ranges.thread, calls.thread],
            start=np.r_[ranges.start, calls.start],
            end=np.r_[ranges.end, calls.end],
            correlation=np.r_[np.full(len(ranges), NONE), calls.launch + 1],
            sequence=np.r_[names.sequence[ranges.name], np.full(len(calls), NONE)],
            operands=np.full(len(ranges) + len(calls), NONE),
        ),
        device=DeviceEvents(
            kind=work.kind,
            name=names.number[work.name],
            device=work.device,
            start=work.start,
            end=work.end,
            correlation=work.launch + 1,
        ),
    )


class _Names:
    """The names that a trace of these events needs: operators have theirs without facts.

    Attributes:
        numbers: The names, numbered.
        number: For each name of the export its number here.
        kind, sequence: What a range of that name is, and its sequence number.
    """

    def __init__(self, events: Events) -> None:
        size = len(events.names)
        self.numbers: dict[str, int] = {}
        self.number = np.full(size, NONE)
        self.kind = np.full(size, int(Kind.ANNOTATION))
        self.sequence = np.full(size, NONE)
        for index in np.unique(events.ranges.name).tolist():
            self._add_range(index, events.names[index])
        others = (events.calls.name, events.work.name, events.graphs.name)
        for index in np.unique(np.concatenate(others)).tolist():
            self._add(index, events.names[index])

    def _add(self, index: int, name: str) -> None:
        self.number[index] = self.numbers.setdefault(name, len(self.numbers))

    def _add_range(self, index: int, text: str) -> None:
        name, facts = text, OPERATOR_FACTS.search(text)
        if facts:
            name = text[: facts.start()]
            if facts[1] == "seq" and facts[2]:
                self.sequence[index] = int(facts[2])
        self._add(index, name)
        if OPERATOR.match(name):
            self.kind[index] = Kind.OPERATOR
