"""The shipped model sizes and how a name finds one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from sysbench.core.errors import SpecError
from sysbench.core.formatting import format_count
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.models import (
    configuration_path,
    find_model,
    model_presets,
    parameters_of_models,
    published_models,
)
from sysbench.core.spec.profiles import load_profile, save_profile
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.tui.commands.spec_arguments import from_file

PUBLISHED = {
    "small": 128_625_408,
    "medium": 423_183_360,
    "large": 969_411_840,
    "xl": 1_998_235_200,
    "2.7B": 3_406_809_600,
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [(f"cs336-2025/{size}", count) for size, count in PUBLISHED.items()]
    + [(f"cs336-2026/{size}", PUBLISHED[size]) for size in ("small", "medium", "large")]
    + [("cs336-2026/xl", PUBLISHED["2.7B"]), ("cs336-2026/10B", 12_832_823_808)],
)
def test_parameter_counts_are_the_published_ones(name: str, parameters: int) -> None:
    assert find_model(name).dimensions.parameters == parameters


@pytest.mark.parametrize("name", published_models())
def test_a_published_model_has_its_published_number_of_parameters(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    values = json.loads(configuration_path(name).read_text("utf-8"))
    config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    with torch.device("meta"):
        model = getattr(transformers, *values["architectures"])._from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == published_models()[name].parameters == parameters_of_models()[name]


def test_a_published_model_keeps_its_name_wherever_it_is_installed(sysbench_home: Path) -> None:
    pytest.importorskip("transformers")
    spec = locate(parse_spec({"model": "gpt2", "model.n_layer": 2}), "")
    assert (spec.model, spec.attention, spec.dimensions.parameters) == ("gpt2", "own", 0)
    assert spec.settings() == {"model": "gpt2", "model.n_layer": "2"}
    assert command_line(spec) == "sysbench-tui run gpt2 model.n_layer=2"
    moved = spec.changed(model_file="/elsewhere/configurations/gpt2.json")
    assert (locate(moved, ""), moved.identity) == (spec, spec.identity)
    save_profile("small", spec)
    assert locate(load_profile("small")[0], "") == spec


def test_a_published_model_is_found_as_its_repository_spells_it() -> None:
    assert from_file("Qwen3-0.6B") == ({"model": "qwen3-0.6b"}, None)


def test_a_published_model_without_transformers_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "sysbench.core.spec.model_source.missing_libraries", lambda python, names: set(names)
    )
    with pytest.raises(SpecError, match=r"it imports transformers, which .* -m pip install"):
        locate(RunSpec(model="qwen3-0.6b"), "")


def test_all_presets_are_listed_with_the_small_one_first() -> None:
    names = list(model_presets())
    assert names[0] == "tiny"
    assert names[1:6] == [f"cs336-2025/{size}" for size in PUBLISHED]
    assert len(names) == 11


@pytest.mark.parametrize("name", ["2.7B", "2.7b", "10B", "tiny", "TINY"])
def test_a_bare_size_of_one_family_is_enough(name: str) -> None:
    assert find_model(name).name.rpartition("/")[2].lower() == name.lower()


def test_an_ambiguous_size_is_refused_with_both_choices_and_their_counts() -> None:
    with pytest.raises(SpecError) as caught:
        find_model("xl")
    assert caught.value.field == "model"
    assert caught.value.value == "xl"
    assert "cs336-2025/xl (1,998,235,200 parameters)" in str(caught.value)
    assert "cs336-2026/xl (3,406,809,600 parameters)" in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("tinny", "tiny"), ("cs336-2025/lareg", "cs336-2025/large"), ("GPT2", "gpt2")],
)
def test_a_typo_is_answered_with_the_nearest_name(typed: str, meant: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"did you mean '{meant}'?")):
        find_model(typed)


def test_an_unknown_name_is_answered_with_all_names() -> None:
    with pytest.raises(SpecError) as caught:
        find_model("qqqqqqqqqqqqq")
    assert all(name in str(caught.value) for name in parameters_of_models())


@pytest.mark.parametrize("name", ["cs336-2025/2.7B", "cs336-2026/10B"])
def test_a_note_on_a_name_of_fewer_parameters_has_the_right_figures(name: str) -> None:
    preset = model_presets()[name]
    size = preset.dimensions
    third_matrix = size.layers * size.d_model * size.d_ff
    assert preset.note.startswith(f"{format_count(size.parameters)} parameters: ")
    assert f"third d_ff matrix adds {third_matrix / 1e9:.2f} G" in preset.note
