"""Table of keys without their values: groups, use, identity, factors."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from sysbench.core.runs.library import SPEC_COLUMNS
from sysbench.core.spec.fields import (
    COMPILE_KEYS,
    FIELDS,
    differing_keys,
    field_named,
    group_keys,
    keys_deciding,
    unused_keys,
)
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec

FOUNDING = 29
"""Keys of the first version. Their number never grows: a key that comes later is ``later``."""

OF_OWN_MODELS = {"model_args", "model_file", "model_source", "trust_code"}
COMPILE_DETAILS = {
    *("compile_backend", "compile_scope", "compile_fullgraph", "compile_dynamic"),
    "compile_cache",
}


def hashed(values: dict[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:16]


def test_keys_that_came_later_stand_last_and_are_marked() -> None:
    later = [field.later for field in FIELDS]
    assert later == [False] * FOUNDING + [True] * (len(FIELDS) - FOUNDING)


def test_a_later_key_s_default_is_no_part_of_the_identity() -> None:
    spec = RunSpec(context=256)
    values = msgspec.to_builtins(spec)
    founding = {field.name: values[field.name] for field in FIELDS[:FOUNDING]}
    assert spec.identity == hashed(founding)
    assert spec.changed(checkpoint=1).identity == hashed(founding | {"checkpoint": 1})


@pytest.mark.parametrize(
    ("values", "unused"),
    [
        ({"step": "train", "compile": "default"}, set()),
        ({"step": "train", "compile": "off"}, COMPILE_DETAILS),
        ({"step": "inference", "compile": "default"}, {"optimizer", "clip", "accumulation"}),
        (
            {"step": "forward", "compile": "off"},
            COMPILE_DETAILS | {"optimizer", "clip", "accumulation"},
        ),
        ({}, {"optimizer", "clip", "accumulation"}),
    ],
)
def test_keys_without_a_use_depend_on_step_and_compile(
    values: dict[str, str], unused: set[str]
) -> None:
    assert unused_keys(values) == unused | OF_OWN_MODELS | {"command"}
    assert unused_keys(values | {"model": "mine.py:make"}) == unused | {"command"}


def test_groups_and_kinds_hold_the_keys_that_forms_and_comparisons_had() -> None:
    assert group_keys("dimensions") == DIMENSION_NAMES
    assert group_keys("update") == ("optimizer", "clip", "compile", "accumulation")
    assert {"compile", *COMPILE_DETAILS} == set(COMPILE_KEYS)
    procedure = ("warmup", "steps", "until", "max_steps", "max_seconds")
    assert keys_deciding("procedure") == procedure
    assert group_keys("stop") == (*procedure, "sync")
    assert keys_deciding("step") == ("step", "optimizer", "clip", "accumulation")
    assert keys_deciding("conditions") == ("sync", "seed", "memory_limit")


def test_the_columns_of_the_library_are_keys_in_their_order() -> None:
    columns = "model batch context precision attention step optimizer compile device"
    assert list(SPEC_COLUMNS) == columns.split()


def test_parts_name_a_key_that_is_no_part() -> None:
    parts = {field.name: field.part_of for field in FIELDS if field.part_of}
    of_model = {*DIMENSION_NAMES, *OF_OWN_MODELS, "command"}
    assert parts == {**dict.fromkeys(of_model, "model"), "bucket_mib": "parallel"}
    assert not any(field_named(whole).part_of for whole in parts.values())


def test_differing_keys_come_in_the_order_of_the_first() -> None:
    assert differing_keys({"b": 1, "a": 2, "same": 0}, {"same": 0, "new": 1, "a": 3}) == [
        *("b", "a", "new"),
    ]
    assert differing_keys({}, {}) == []
