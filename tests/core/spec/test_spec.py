"""The spec: its checks, its messages, its identity."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import SpecError
from sysbench.core.spec.fields import FIELDS, Field
from sysbench.core.spec.models import model_presets
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec

OWN_SIZE: dict[str, Any] = {"vocab": 64, "d_model": 32, "d_ff": 48, "layers": 2, "heads": 4}

# For every key a value that differs from the default, as TOML and as text.
OTHER_VALUES: dict[str, tuple[object, str]] = {
    "batch": (2, "2"),
    "context": (64, "64"),
    "precision": ("bf16", "bf16"),
    "attention": ("sdpa", "sdpa"),
    "step": ("inference", "inference"),
    "optimizer": ("sgd", "sgd"),
    "clip": (1, "1.0"),
    "compile": ("default", "default"),
    "compile_backend": ("aot_eager", "aot_eager"),
    "compile_scope": ("block", "block"),
    "compile_fullgraph": (True, "yes"),
    "compile_dynamic": (False, "off"),
    "compile_cache": ("cold", "cold"),
    "warmup": (3, "3"),
    "steps": (7, "7"),
    "until": (0.01, "1%"),
    "max_steps": (50, "50"),
    "max_seconds": (5, "5"),
    "sync": ("every-step", "every-step"),
    "device": ("cuda", "cuda:0"),
    "threads": (2, "2"),
    "seed": (1, "1"),
    "memory_limit": (2**30, "1GiB"),
    "model": ("2.7B", "cs336-2025/2.7B"),
}


def failure(values: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(values)
    return caught.value


def test_the_table_of_fields_has_every_key_once_and_in_order() -> None:
    assert tuple(field.name for field in FIELDS) == RunSpec.__struct_fields__


def test_defaults_are_the_tiny_preset() -> None:
    spec = RunSpec()
    assert spec.model == "tiny"
    assert spec.dimensions == model_presets()["tiny"].dimensions
    assert spec == parse_spec({}) == RunSpec(model="tiny")


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_toml_values_and_texts_reach_the_same_spec(name: str) -> None:
    value, text = OTHER_VALUES[name]
    from_toml: dict[str, Any] = {name: value}
    from_text: dict[str, Any] = {name: f" {text} "}
    assert parse_spec(from_toml) == parse_spec(from_text) == RunSpec(**from_toml)
    assert RunSpec(**from_toml).identity == RunSpec(**from_text).identity


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_identity_changes_with_every_key(name: str) -> None:
    assert RunSpec().identity != parse_spec({name: OTHER_VALUES[name][0]}).identity


@pytest.mark.parametrize("name", DIMENSION_NAMES)
def test_identity_changes_with_every_dimension(name: str) -> None:
    one = RunSpec(**OWN_SIZE)
    assert one.identity != one.changed(**{name: 2 * OWN_SIZE[name]}).identity


def test_identity_is_the_same_in_another_process() -> None:
    code = (
        "from sysbench.core.spec.spec import RunSpec; print(RunSpec(model='2.7B', clip=1).identity)"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == RunSpec(model="cs336-2025/2.7B", clip=1.0).identity


def test_equal_numbers_written_differently_are_one_identity() -> None:
    assert RunSpec(clip=0).identity == RunSpec(clip=-0.0).identity == RunSpec().identity
    assert RunSpec(device="cuda").identity == RunSpec(device="cuda:0").identity
    assert RunSpec(max_seconds=20).identity == RunSpec(max_seconds=20.0).identity


@pytest.mark.parametrize(
    ("values", "field", "allowed"),
    [
        ({"batch": 0}, "batch", "an integer from 1"),
        ({"batch": -4}, "batch", "an integer from 1"),
        ({"batch": True}, "batch", "an integer"),
        ({"batch": 2.0}, "batch", "an integer"),
        ({"batch": "four"}, "batch", "an integer"),
        ({"batch": "1\x00"}, "batch", "an integer"),
        ({"batch": [4]}, "batch", "an integer"),
        ({"batch": {"size": 4}}, "batch", "an integer"),
        ({"batch": 2**64}, "batch", "to 1048576"),
        ({"batch": 10**5000}, "batch", "to 1048576"),
        ({"batch": "9" * 5000}, "batch", "to 1048576"),
        ({"layers": -1, "heads": 1}, "layers", "an integer from 0"),
        ({"clip": float("nan")}, "clip", "a number from 0"),
        ({"clip": "nan"}, "clip", "a number from 0"),
        ({"clip": float("inf")}, "clip", "a number from 0"),
        ({"clip": 10**400}, "clip", "a number from 0"),
        ({"clip": True}, "clip", "a number from 0"),
        ({"clip": -1.0}, "clip", "a number from 0"),
        ({"until": 0}, "until", "a share from"),
        ({"until": "200%"}, "until", "a share from"),
        ({"precision": "bf61"}, "precision", "did you mean 'bf16'?"),
        ({"precision": 16}, "precision", "one of fp32, tf32, bf16, fp16, bf16-pure"),
        ({"precision": 10**5000}, "precision", "one of fp32"),
        ({"precision": ["fp32"]}, "precision", "one of fp32"),
        ({"precision": True}, "precision", "one of fp32"),
        ({"attention": ""}, "attention", "one of naive"),
        ({"optimizer": "adamw"}, "optimizer", "did you mean 'adamw-"),
        ({"compile_fullgraph": "perhaps"}, "compile_fullgraph", "true or false"),
        ({"compile_fullgraph": 1}, "compile_fullgraph", "true or false"),
        ({"warmup": "soon"}, "warmup", "auto, or an integer"),
        ({"warmup": -1}, "warmup", "auto, or an integer"),
        ({"device": "gpu"}, "device", "auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:1\n:"}, "device", "auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:١"}, "device", "auto, cpu, cuda or cuda:N"),
        ({"device": 0}, "device", "auto, cpu, cuda or cuda:N"),
        ({"memory_limit": "24GB"}, "memory_limit", "binary units"),
        ({"memory_limit": 1000}, "memory_limit", "at least 1MiB"),
        ({"memory_limit": "9" * 400}, "memory_limit", "binary units"),
        ({"seed": 2**31}, "seed", "to 2147483647"),
        ({"model": "larg"}, "model", "did you mean"),
        ({"model": "x" * 101}, "model", "the name of a preset"),
        ({"model": ["tiny"]}, "model", "the name of a preset"),
        ({"model": "custom"}, "model", "needs all of vocab, d_model"),
        ({"model": "tiny", "layers": 3}, "layers", "tiny has layers = 2"),
        ({"vocab": 64}, "vocab", "also needs d_model, d_ff, layers, heads"),
        ({**OWN_SIZE, "heads": 3}, "heads", "must divide d_model = 32; near: 2, 4"),
        ({**OWN_SIZE, "heads": 32}, "heads", "must be even"),
        ({**OWN_SIZE, "d_model": 33, "heads": 3}, "d_model", "must be even"),
        ({"device": "cpu", "precision": "tf32"}, "precision", "CUDA devices only"),
        ({"device": "cpu", "attention": "sdpa-cudnn"}, "attention", "a CUDA kernel"),
        ({"device": "cuda", "attention": "sdpa-flash"}, "attention", "bf16 and fp16 only"),
    ],
)
def test_a_bad_spec_names_the_field_the_value_and_what_is_allowed(
    values: dict[str, Any], field: str, allowed: str
) -> None:
    error = failure(values)
    assert error.exit_code == 2
    assert error.field == field
    assert allowed in error.allowed
    if field in values:
        assert error.value == values[field] or values[field] != values[field]
    assert str(error).startswith(f"{field} = ")
    assert str(error).isprintable()
    assert len(str(error)) < 600


def test_suggested_heads_are_allowed() -> None:
    error = failure({**OWN_SIZE, "d_model": 1600, "heads": 24})
    for heads in error.allowed.rpartition("near: ")[2].split(", "):
        assert parse_spec({**OWN_SIZE, "d_model": 1600, "heads": heads}).heads == int(heads)


@pytest.mark.parametrize(
    ("key", "hint"), [("precison", "did you mean 'precision'?"), ("lr", "known: model, vocab")]
)
def test_an_unknown_key_is_refused_with_its_value_and_the_nearest_key(key: str, hint: str) -> None:
    error = failure({key: "bf16"})
    assert (error.field, error.value) == (key, "bf16")
    assert hint in str(error)


def test_control_characters_in_keys_and_values_do_not_reach_the_message() -> None:
    assert "\x1b" not in str(failure({"\x1b[31mbatch": 1}))
    assert "\x1b" not in str(failure({"precision": "\x1b[31m"}))
    assert "\x1b" not in str(failure({"model": "ti\x1b]0;ny\x07"}))


def test_hostile_toml_is_refused_key_by_key() -> None:
    toml = """
    [batch]
    nested = { deep = [1, 2, { deeper = nan }] }
    """
    assert failure(tomllib.loads(toml)).field == "batch"


@given(
    st.sampled_from(FIELDS),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary(max_size=8)
        | st.dates(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_any_value_is_taken_or_refused_by_its_field(field: Field, value: object) -> None:
    try:
        spec = parse_spec({field.name: value})
    except SpecError as error:
        assert str(error).isprintable()
    else:
        taken = getattr(spec, field.name)
        assert type(taken) in (int, float, str, bool)
        assert spec == parse_spec(spec.settings())
        assert msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec) == spec


def test_settings_give_the_spec_back() -> None:
    values = {name: text for name, (_, text) in OTHER_VALUES.items() if name != "model"}
    for model in ({}, {"model": "2.7B"}, OWN_SIZE):
        spec = parse_spec({**values, **model})
        assert parse_spec(spec.settings()) == spec
        assert parse_spec({key: str(value) for key, value in spec.settings().items()}) == spec


def test_settings_of_an_own_size_name_all_dimensions_even_where_they_equal_the_default() -> None:
    tiny = RunSpec()
    spec = RunSpec(**{**OWN_SIZE, "vocab": tiny.vocab, "d_model": tiny.d_model})
    assert spec.settings().keys() == set(DIMENSION_NAMES)
    assert parse_spec(spec.settings()) == spec


def test_a_preset_and_its_own_dimensions_agree() -> None:
    tiny = model_presets()["tiny"]
    spec = RunSpec(model="tiny", **msgspec.to_builtins(tiny.dimensions))
    assert spec == RunSpec(model="tiny")
    assert RunSpec(**msgspec.to_builtins(tiny.dimensions)).model == "custom"


def test_changing_a_spec_checks_it_again() -> None:
    with pytest.raises(SpecError, match="batch = 0"):
        RunSpec().changed(batch=0)
    with pytest.raises(SpecError, match="CUDA devices only"):
        RunSpec(precision="tf32").changed(device="cpu")


def test_changing_the_model_or_a_dimension_settles_the_other() -> None:
    wider = RunSpec().changed(d_ff=100)
    assert (wider.model, wider.d_ff, wider.d_model) == ("custom", 100, RunSpec().d_model)
    assert wider.changed(model="tiny") == RunSpec()


def test_a_spec_survives_json() -> None:
    spec = parse_spec({**OWN_SIZE, "clip": 1, "device": "cuda:3", "precision": "bf16"})
    assert msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec) == spec


def test_a_spec_is_immutable_and_hashable() -> None:
    spec = RunSpec()
    with pytest.raises(AttributeError):
        spec.batch = 2  # type: ignore[misc]
    assert {spec: 1}[RunSpec()] == 1
