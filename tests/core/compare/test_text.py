"""A verdict in words and as a picture, whose marks are in the order of the numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.difference import (
    DifferenceSide,
    difference,
    under_verdict,
    unexplained,
)
from sysbench.core.compare.nodes import ByteNode, Difference, TimeNode
from sysbench.core.compare.verdict import (
    CELLS,
    Verdict,
    Word,
    describe_verdict,
    headline,
    interval_line,
)
from sysbench.core.record.steps import MarkedSteps, StepRow
from sysbench.tui.glyphs import to_ascii
from tests.conftest import KERNELS
from tests.factories import record, record_of_rounds

shares = st.floats(-0.9, 9)


def verdict(change: float | None, low: float | None, high: float | None) -> Verdict:
    return Verdict(verdict="not decidable", why="", change=change, low=low, high=high)


WORDS: dict[Word, str] = {
    "slower": "B is slower: +3.0 % (95 % CI +2.0 to +4.0 %)",
    "faster": "B is faster: +3.0 % (95 % CI +2.0 to +4.0 %)",
    "same": "B is the same within 1.0 %: +3.0 % (95 % CI +2.0 to +4.0 %)",
    "not decidable": "Inconclusive: +3.0 % (95 % CI +2.0 to +4.0 %)",
    "not the same computation": "Not the same computation: +3.0 % (95 % CI +2.0 to +4.0 %)",
}


@pytest.mark.parametrize("word", WORDS)
def test_a_headline_speaks_of_b_only_where_something_is_known_of_it(word: Word) -> None:
    judged = Verdict(verdict=word, why="why", next="then", change=0.03, low=0.02, high=0.04)
    text = describe_verdict(judged)
    assert text.headline == WORDS[word]
    assert text.reasons == ("why", "then")
    assert describe_verdict(judged, "The run").headline == WORDS[word].replace("B is", "The run is")
    assert (
        headline(judged).capitalize()
        == WORDS[word].removeprefix("B is ").removeprefix("the ").capitalize()
    )


def test_a_wide_interval_has_no_decimals_and_an_unknown_one_is_said_to_be() -> None:
    wide = verdict(-0.125, -0.846, 3.983)
    assert describe_verdict(wide).headline == "Inconclusive: -12.5 % (95 % CI -85 to +398 %)"
    assert headline(verdict(-0.125, None, None)) == "inconclusive: -12.5 % (95 % CI unknown)"


def test_without_a_change_the_headline_has_the_reason() -> None:
    text = describe_verdict(Verdict(verdict="not decidable", why="no timing in run-1"))
    assert (text.headline, text.reasons) == ("No verdict: no timing in run-1", ())


def test_a_line_by_hand() -> None:
    line = interval_line(verdict(0.01, -0.005, 0.015), cells=17)
    assert line == "-2 % ┄┄┄┄┊┄┤─│───●─├┄┄ +2 %"
    assert to_ascii(line) == "-2 % ....:.|-|---*-|.. +2 %"


def test_without_an_interval_there_is_only_the_change_and_without_that_nothing() -> None:
    assert interval_line(verdict(-0.03, None, None), 11) == "-5 % ┄┄●┄┊│┊┄┄┄┄ +5 %"
    assert interval_line(verdict(None, None, None)) == ""


@given(shares, st.floats(0, 2), st.floats(0, 2))
def test_every_line_is_as_wide_and_its_marks_are_in_order(
    change: float, below: float, above: float
) -> None:
    line = interval_line(verdict(change, max(-0.99, change - below), change + above))
    left, axis, right = (line.split(" % ")[0], line.split(" % ")[1].split(" +")[0], line)
    assert len(axis) == CELLS
    assert left.startswith("-") and right.endswith("%")
    assert axis.count("●") == 1
    places = [axis.find(mark) for mark in "┤●├" if mark in axis]
    assert places == sorted(places)
    assert to_ascii(line).isascii() and len(to_ascii(line)) == len(line)


@given(st.floats(1e-6, 9), st.floats(1e-6, 1))
def test_an_interval_beyond_zero_is_drawn_beyond_it(low: float, width: float) -> None:
    axis = interval_line(verdict(low + width / 2, low, low + width))
    zero = axis.find("│")
    assert zero < 0 or axis.find("●") > zero  # a mark nearer than a cell covers the zero


TRACED = TimeNode(kind="step", name="step", state="both", a_ns=10_000_000, b_ns=40_000_000)
BEGINNINGS = {
    # Untraced change in ms, verdict, ends of its interval: what is said of +30 ms of the trace.
    (-18.0, "faster", -0.3, -0.1): "Traced +30.000 ms, untraced -18.000 ms: the trace does not",
    (-18.0, "not decidable", None, None): "Traced +30.000 ms, untraced -18.000 ms: the trace does",
    (2.0, "not decidable", -0.1, 0.2): "Traced +30.000 ms, untraced +2.000 ms (inconclusive: ",
    (0.2, "same", 0.001, 0.004): "Traced +30.000 ms, untraced +0.200 ms (same within 1.0 %: ",
    (18.0, "slower", 0.1, 0.3): "",
    (18.0, "not decidable", None, None): "",
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_rows_explain_no_change_of_the_other_sign_and_none_that_is_noise(
    case: tuple[float, Word, float | None, float | None],
) -> None:
    change_ms, word, low, high = case
    a, b = (record_of_rounds([ms]) for ms in (100.0, 100.0 + change_ms))
    judged = Verdict(verdict=word, why="", change=change_ms / 100, low=low, high=high)
    sentence = unexplained(TRACED, a, b, judged)
    assert sentence.startswith(BEGINNINGS[case]) and bool(sentence) == bool(BEGINNINGS[case])
    assert not unexplained(None, a, b, judged)
    untimed = Verdict(verdict="not decidable", why="times of a simulated GPU are not meaningful")
    assert not unexplained(TRACED, a, b, untimed)
    rows = Difference(
        summary=["Traced step +30 ms.", "Peak +1 MiB."],
        time=TRACED,
        memory=ByteNode(kind="peak", name="peak", state="both", a_bytes=0, b_bytes=1),
        notes=[],
        missing={},
    )
    said = under_verdict(rows, a, b, judged)
    assert said.summary == ([sentence, "Peak +1 MiB."] if sentence else rows.summary)


@pytest.mark.parametrize(
    ("a", "b", "is_noted"),
    [
        ("prefill", "decode", True),
        ("prefill decode", "prefill decode decode", True),
        ("prefill decode", "decode prefill prefill decode", False),
        ("decode", "decode decode", False),
    ],
)
def test_means_over_unlike_steps_are_noted(a: str, b: str, is_noted: bool) -> None:
    def side(kinds: str) -> DifferenceSide:
        rows = [StepRow(number=n, name="", kind=kind) for n, kind in enumerate(kinds.split())]
        marked = MarkedSteps(
            family="vLLM",
            clock="device",
            span_ns=1,
            rows=rows,
            outside=StepRow(number=None, name=""),
            chosen=(0, len(rows) - 1),
        )
        kernels = msgspec.structs.replace(KERNELS, marked_steps=marked)
        return DifferenceSide(record(kernels=kernels))

    notes = difference(side(a), side(b)).notes
    assert any("unlike steps" in note for note in notes) == is_noted
