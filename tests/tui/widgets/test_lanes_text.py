"""Times, names and letters of the timeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.colours import KERNELS, LANES
from sysbench.core.trace.classify import BETWEEN, HOST_LATE
from sysbench.core.trace.lane_drawing import Gap, IdlePiece
from sysbench.tui.widgets.lanes_text import (
    STATUS_ROWS,
    format_instant,
    gap_text,
    letter_of,
    plain_name,
    status_rows,
    tick_step,
)

GAP = Gap(
    pieces=[IdlePiece(BETWEEN, 0, 200), IdlePiece(HOST_LATE, 200, 1_200)],
    host={"aten::to": 900},
)


@given(st.integers(1, 10**13), st.integers(1, 200))
def test_the_step_of_an_axis_is_the_smallest_round_one(span: int, most: int) -> None:
    step = tick_step(span, most)
    assert str(step).rstrip("0") in ("1", "2", "5")
    assert span // step <= most
    smaller = [step * 4 // 10 if str(step)[0] == "5" else step // 2]
    assert step == 1 or all(span // before > most for before in smaller)


@given(st.integers(0, 10**12), st.sampled_from([1, 2, 5]), st.integers(0, 9))
def test_neighbours_on_an_axis_read_differently(number: int, digit: int, power: int) -> None:
    step = digit * 10**power
    texts = {format_instant(step * (number + place), step) for place in range(3)}
    assert len(texts) == 3


def test_a_gap_names_its_main_cause_first() -> None:
    assert gap_text("idle {} before it", GAP) == (
        "idle 1.20 µs before it: waiting for the CPU to launch 1.00 µs, "
        "between launched kernels 200 ns · longest on the CPU: aten::to 900 ns"
    )


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_the_lines_below_fit(width: int) -> None:
    rows = status_rows("name " * 30, "fact · " * 12, gap_text("idle {} before it", GAP), width)
    assert len(rows) == STATUS_ROWS
    assert all(sum(len(text) for text, _ in row) <= width for row in rows)


def test_a_kernel_is_named_without_its_template() -> None:
    names = {
        "void at::native::(anonymous namespace)::vectorized_add<4, float>(int)": "vectorized_add",
        "void cutlass::Kernel2<cutlass_80>(Params)": "Kernel2",
        "ampere_sgemm_128x64_tn": "ampere_sgemm_128x64_tn",
        "aten::to": "aten::to",
        "<lambda>": "<lambda>",
    }
    assert {name: plain_name(name) for name in names} == names


def test_no_two_categories_share_a_letter() -> None:
    letters = [letter_of(name) for name in (*KERNELS, *LANES)]
    assert len(set(letters)) == len(letters)
