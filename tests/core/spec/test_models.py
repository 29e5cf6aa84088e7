"""The shipped model sizes and how a name finds one."""

from __future__ import annotations

import re

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.formatting import format_count
from sysbench.core.spec.models import find_model, model_presets

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
    ("typed", "meant"), [("tinny", "tiny"), ("cs336-2025/lareg", "cs336-2025/large")]
)
def test_a_typo_is_answered_with_the_nearest_name(typed: str, meant: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"did you mean '{meant}'?")):
        find_model(typed)


def test_an_unknown_name_is_answered_with_all_names() -> None:
    with pytest.raises(SpecError) as caught:
        find_model("qqqqqqqqqqqqq")
    assert all(name in str(caught.value) for name in model_presets())


@pytest.mark.parametrize("name", ["cs336-2025/2.7B", "cs336-2026/10B"])
def test_a_note_on_a_name_of_fewer_parameters_has_the_right_figures(name: str) -> None:
    preset = model_presets()[name]
    size = preset.dimensions
    third_matrix = size.layers * size.d_model * size.d_ff
    assert preset.note.startswith(f"{format_count(size.parameters)} parameters: ")
    assert f"third d_ff matrix adds {third_matrix / 1e9:.2f} G" in preset.note
