"""Shapes on their way from the trace: as columns, and from one reading process to another."""

from __future__ import annotations

import json

import msgspec
import numpy as np

from sysbench.core.trace.columns import MAX_OPERANDS_LENGTH, Collector
from sysbench.core.trace.operands import parse_operands
from sysbench.core.trace.trace_json import JsonEvent


def events(*dims: object) -> list[JsonEvent]:
    """One operator for each, with these dims; None for one without shapes."""
    made = []
    for index, one in enumerate(dims):
        args = {} if one is None else {"Input Dims": [one], "Input type": ["float"]}
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::exp", "ts": index, "args": args}
        made.append(event)
    return msgspec.json.decode(json.dumps(made), type=list[JsonEvent])


def shapes(collector: Collector) -> list[tuple[int, ...] | None]:
    """The shape of each host event's first input."""
    trace = collector.finish()
    found: list[tuple[int, ...] | None] = []
    for number in trace.host.operands.tolist():
        operands = parse_operands(trace.operands[number]) if number >= 0 else None
        found.append(operands[0].shape if operands else None)
    return found


def test_equal_inputs_are_kept_once() -> None:
    collector = Collector()
    collector.add(events([2, 3], None, [2, 3], [4]))
    assert shapes(collector) == [(2, 3), None, (2, 3), (4,)]
    assert len(collector.operands) == 2


def test_a_trace_without_shapes_has_none() -> None:
    collector = Collector()
    collector.add(events(None, None))
    assert shapes(collector) == [None, None]
    assert np.array_equal(collector.finish().host.operands, [-1, -1])


def test_endless_inputs_are_left_out() -> None:
    collector = Collector()
    collector.add(events([1] * MAX_OPERANDS_LENGTH, [7]))
    assert shapes(collector) == [None, (7,)]
