"""Which keys of a spec go together, and which passes a workload has."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.record.blocks import DEFAULT_PASSES, PassName
from sysbench.core.runs.run_directory import create_run
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.profiles import load_profile, save_profile
from sysbench.core.spec.spec import RunSpec, parse_spec

BARE: dict[str, object] = {"workload": "attention", "d_model": 64}


def refusal(values: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(values)
    return caught.value


def test_bare_attention_needs_its_width_alone() -> None:
    spec = parse_spec(BARE)
    assert (spec.d_model, spec.heads, spec.layers, spec.vocab, spec.d_ff) == (64, 1, 1, 1, 1)
    assert spec.step == "forward+backward"
    assert not spec.is_causal
    assert parse_spec(BARE | {"mask": "causal"}).is_causal
    assert RunSpec().is_causal


@pytest.mark.parametrize(
    "more", [{}, {"heads": 4, "mask": "causal", "step": "inference"}, {"precision": "bf16"}]
)
def test_its_command_line_says_the_same_spec_again(more: dict[str, object]) -> None:
    spec = parse_spec(BARE | {"batch": 8, "context": 4096} | more)
    words = shlex.split(command_line(spec))
    typed = dict(word.split("=", 1) for word in words if "=" in word)
    assert parse_spec(typed) == spec
    assert parse_spec(spec.settings()).identity == spec.identity
    assert not typed.keys() & {"vocab", "layers", "d_ff", "model"}
    assert spec.changed(batch=2).changed(batch=8) == spec


def test_odd_widths_are_fine_where_nothing_is_turned() -> None:
    assert parse_spec({"workload": "attention", "d_model": 15, "heads": 3}).d_model == 15


@pytest.mark.parametrize(
    ("values", "field", "allowed"),
    [
        ({"workload": "attention"}, "d_model", "needs it"),
        ({**BARE, "model": "tiny"}, "model", "leave it out"),
        ({**BARE, "layers": 2}, "layers", "leave it out"),
        ({**BARE, "heads": 5}, "heads", "must divide d_model = 64"),
        ({**BARE, "checkpoint": 1}, "checkpoint", "unless workload = transformer"),
        ({"mask": "none"}, "mask", "unless workload = attention"),
        ({"checkpoint": 3}, "checkpoint", "at most 2 blocks"),
        ({"checkpoint": 1, "step": "forward"}, "checkpoint", "with a backward"),
        ({"attention": "flex", "device": "cpu"}, "attention", "for step = inference only"),
        ({**BARE, "attention": "flex", "device": "cpu"}, "attention", "inference only"),
    ],
)
def test_what_does_not_go_together_is_refused(
    values: dict[str, Any], field: str, allowed: str
) -> None:
    error = refusal(values)
    assert error.field == field
    assert allowed in error.allowed


def test_a_mask_is_part_of_the_identity() -> None:
    assert parse_spec(BARE).identity != parse_spec(BARE | {"mask": "causal"}).identity


@pytest.mark.parametrize(
    ("values", "passes"),
    [
        ({}, DEFAULT_PASSES),
        (BARE, DEFAULT_PASSES),
        ({"workload": "accumulation"}, ("numerics",)),
        ({"workload": "autocast-dtypes"}, ("numerics",)),
        ({"ranks": 2, "parallel": "flat"}, ("timing", "trace", "memory")),
        ({"ranks": 2, "workload": "all-reduce", "payload_mib": 1}, ("timing",)),
    ],
)
def test_every_workload_has_passes_of_its_own(
    values: dict[str, object], passes: tuple[PassName, ...]
) -> None:
    spec = parse_spec(values)
    assert spec.default_passes == passes
    assert "--passes" not in command_line(spec, passes)
    assert command_line(spec) == command_line(spec, passes)


@pytest.mark.parametrize(
    ("values", "name", "allowed"),
    [
        ({"workload": "accumulation"}, "timing", "numerics, the only pass"),
        ({"workload": "autocast-dtypes"}, "memory", "numerics, the only pass"),
        ({}, "numerics", "accumulation and autocast-dtypes"),
        ({"ranks": 2, "parallel": "ddp"}, "nsys", "trace and memory, the only passes of several"),
        (
            {"ranks": 2, "workload": "all-reduce", "payload_mib": 1},
            "memory",
            "timing, the only pass of all-reduce",
        ),
    ],
)
def test_no_run_is_made_with_a_pass_that_the_workload_has_not(
    tmp_path: Path, values: dict[str, object], name: PassName, allowed: str
) -> None:
    with pytest.raises(SpecError) as caught:
        create_run(parse_spec(values), [name], tmp_path)
    assert caught.value.field == "passes"
    assert allowed in caught.value.allowed
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("sysbench_home")
def test_a_saved_profile_keeps_bare_attention_and_default_passes() -> None:
    spec = parse_spec({"workload": "accumulation", "device": "cpu"})
    save_profile("sums", spec)
    assert load_profile("sums") == (spec, ["numerics"])
    save_profile("bare", parse_spec(BARE))
    assert load_profile("bare") == (parse_spec(BARE), list(DEFAULT_PASSES))
