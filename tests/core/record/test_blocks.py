"""The registry of passes: every row is complete, and fits what reads it."""

from __future__ import annotations

import inspect
from typing import get_args

import msgspec
import pytest

from sysbench.core.record.blocks import (
    DEFAULT_PASSES,
    EVERY_PASS,
    PASSES,
    RECORD_BLOCKS,
    BlockName,
    Pass,
    PassName,
)
from sysbench.core.record.events import ResultReported, decode_event, encode_event
from sysbench.core.record.record import Record
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.imports import measure_of

FIELDS = {field.name: field.type for field in msgspec.structs.fields(Record)}


def struct_of(annotation: object) -> type[msgspec.Struct]:
    """The struct of ``Timing | None``."""
    (struct,) = (kind for kind in get_args(annotation) or (annotation,) if kind is not type(None))
    assert isinstance(struct, type)
    assert issubclass(struct, msgspec.Struct)
    return struct


def test_every_name_has_one_row_in_the_order_of_running() -> None:
    assert get_args(PassName) == EVERY_PASS == tuple(PASSES)
    assert set(DEFAULT_PASSES) < set(EVERY_PASS)


def test_every_block_is_a_field_of_the_record_and_of_one_pass() -> None:
    assert len(set(RECORD_BLOCKS)) == len(RECORD_BLOCKS)
    assert {*RECORD_BLOCKS, "oom"} == set(get_args(BlockName))
    for block in RECORD_BLOCKS:
        assert issubclass(struct_of(FIELDS[block]), msgspec.Struct)


@pytest.mark.parametrize("row", PASSES.values(), ids=EVERY_PASS)
def test_the_step_of_a_pass_is_a_number_of_its_block(row: Pass) -> None:
    assert row.measures_steps or not row.step_ms
    kind: object = FIELDS[row.block]
    for name in filter(None, row.step_ms.split(".")):
        kind = {each.name: each.type for each in msgspec.structs.fields(struct_of(kind))}[name]
    if row.step_ms:
        assert kind in (float, float | None)


@pytest.mark.parametrize("row", PASSES.values(), ids=EVERY_PASS)
def test_a_pass_is_measured_by_the_module_of_its_name(row: Pass) -> None:
    measure = measure_of(Job(spec=RunSpec(device="cpu"), name=row.name, folder="."))
    assert measure.__module__.endswith(f".worker.passes.{row.name}_pass")
    job, report, *make = inspect.signature(measure).parameters
    assert (job, report) == ("job", "report")
    assert make in ([], ["make"])


def test_every_block_crosses_the_pipe() -> None:
    for block in get_args(BlockName):
        event = ResultReported(t_ns=1, block=block, data={"a": 1})
        assert decode_event(encode_event(event)) == event
