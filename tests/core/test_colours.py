"""A category looks the same everywhere, and can be distinguished from the others."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.colours import FAMILIES, HUES, KERNELS, LOOKS, MEMORY, look_of
from sysbench.core.export.page_document import colour_of, memory_chart
from sysbench.core.memory.allocations import OWNERS
from sysbench.core.predict.closed_form import ROWS
from sysbench.core.record.record import Timeline
from sysbench.core.trace.classify import CATEGORIES
from tests.colour_science import VISIONS, contrast, distance

PAGES = {"dark": "#151a20", "light": "#ffffff"}
"""Backgrounds of the HTML page's sections, as in its ``page.css``."""
COLOURED = {name: hue for name, hue in HUES.items() if name != "grey"}


def test_every_category_is_listed() -> None:
    assert set(CATEGORIES) <= set(KERNELS)
    assert {*OWNERS, *ROWS} <= set(MEMORY)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: next(iter(family)))
def test_no_two_names_of_a_family_share_hue_and_texture(family: dict[str, object]) -> None:
    looks = [look_of(name) for name in family]
    assert len({(look.hue, look.glyph) for look in looks}) == len(looks)


def test_the_commonest_differ_in_hue_and_in_texture() -> None:
    for family in (KERNELS, MEMORY):
        common = [look for look in family.values() if not look.faint and look.glyph != "░"][:7]
        assert len({look.hue for look in common}) == len({look.glyph for look in common}) == 7


@given(st.text(max_size=30))
def test_a_look_goes_by_the_name_alone(name: str) -> None:
    assert look_of(name) == look_of(name)
    assert look_of(name).hue in HUES


def test_parts_of_a_row_look_like_it() -> None:
    hues = {look.hue for name, look in LOOKS.items() if name.startswith("temporaries")}
    assert hues == {MEMORY["temporaries"].hue}
    assert look_of("rounding to 512-byte blocks") == MEMORY["rounding"]
    assert look_of("temporaries (somewhere)") == MEMORY["temporaries"]


@pytest.mark.parametrize("scheme", PAGES)
def test_a_hue_stands_out_from_the_page(scheme: str) -> None:
    ratios = {name: contrast(getattr(hue, scheme), PAGES[scheme]) for name, hue in HUES.items()}
    assert min(ratios.values()) >= 3.0, ratios  # WCAG 2.2, 1.4.11 for graphics


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", PAGES)
def test_hues_stay_apart_for_every_reader(scheme: str, vision: str) -> None:
    colours = {name: getattr(hue, scheme) for name, hue in COLOURED.items()}
    apart = {
        (one, other): distance(colours[one], colours[other], vision)
        for one, other in combinations(colours, 2)
    }
    assert min(apart.values()) >= 0.07, min(apart, key=apart.__getitem__)


def test_the_page_draws_a_category_alike_in_any_company() -> None:
    alone = memory_chart(Timeline([0.0, 1.0], [4, 4], {"activations": [4, 4]}, []))
    both = {"parameters": [9, 9], "activations": [4, 4]}
    among = memory_chart(Timeline([0.0, 1.0], [13, 13], both, []))
    for chart in (alone, among):
        assert f'style="fill:{colour_of("activations")}"' in chart
        assert f'style="background:{colour_of("activations")}"' in chart
