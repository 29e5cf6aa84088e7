"""The sides of a verdict as tables, and as Markdown for a pull request."""

from __future__ import annotations

from sysbench.core.compare.compared_records import verdict_of
from sysbench.core.compare.comparison import Factor
from sysbench.core.compare.conditions import Condition
from sysbench.core.export.text_formats import verdict_as_markdown
from sysbench.core.tables.verdict_sides import (
    Side,
    conditions_table,
    factor_table,
    left_out_table,
    sides_table,
)
from tests import factories


def side(name: str, *medians_ms: float, **fields: object) -> Side:
    return Side(name=name, run="run", rounds=factories.rounds(medians_ms, **fields), loss=4.5)


def test_from_six_rounds_on_the_median_has_its_interval_and_below_its_range() -> None:
    many, few = side("A", *range(10, 22)), side("B", 10, 30, 20)
    table = sides_table([many, many])
    assert "95 % interval" in table.title
    assert table.column("median_ms") == [15.5, 15.5]
    assert table.column("ci_low_ms") == [12, 12]  # the third of twelve
    table = sides_table([many, few])
    assert "range" in table.title
    assert table.column("ci_low_ms") == [10, 10]
    assert table.column("rounds") == [12, 3]
    assert sides_table([side("A", 10)]).column("ci_low_ms") == [None]


def test_the_factors_of_both_runs_are_one_table() -> None:
    factors = [Factor(name="precision", a="fp32", b="bf16")]
    procedure = [Factor(name="steps", a=10, b=20)]
    assert factor_table(factors).rows == (("precision", "fp32", "bf16"),)
    table = factor_table(factors, procedure)
    assert table.columns == ("factor", "A", "B", "what")
    assert table.column("what") == ["may be the cause", "only how long it was measured"]
    gate = factor_table(factors, title="What else differs", names=("baseline", "run"))
    assert gate.columns == ("factor", "baseline", "run")


def test_rounds_that_do_not_count_are_a_row_each_with_their_reason() -> None:
    torn = side("B", 12.0, outcome="killed", experiment="x", median_ms=None)
    table = left_out_table([side("A", 10.0), side("A", 11.0, disturbed="java came"), torn])
    assert table.column("why") == ["java came", "killed"]
    assert table.column("block") == [None, 1]
    assert sides_table([torn]).column("left_out") == [1]


def test_markdown_has_the_verdict_first_and_escapes_foreign_text() -> None:
    a = factories.record_of_rounds([10, 10.1, 9.9, 10, 10.2, 9.8], experiment="x")
    b = factories.record_of_rounds([11, 11.1, 10.9, 11, 11.2, 10.8], experiment="x")
    hostile = Condition(name="other GPU processes", a="<b>|x", text="seen", warns=True)
    text = verdict_as_markdown(
        verdict_of(a, b),
        [sides_table([side("A", 10), side("B", 11)])],
        facts=["Gate of 3.0 %: regression", ""],
        commands=["sysbench-tui ab 1 2"],
        folded=[conditions_table([hostile])],
    )
    first, *rest = text.splitlines()
    assert first.startswith("### ") and "B is slower: +10.0 %" in first
    assert "- Gate of 3.0 %: regression" in rest
    assert "| other GPU processes (!) | \\<b\\>\\|x |  | seen |" in rest
    assert "<details><summary>Conditions of the rounds</summary>" in rest
    assert text.endswith("```sh\nsysbench-tui ab 1 2\n```\n")
    assert "- " not in [line for line in rest if not line.strip("- ")]


def test_markdown_keeps_commands_in_sentences_as_code() -> None:
    a, b = (factories.record_of_rounds([ms]) for ms in (10, 11))
    text = verdict_as_markdown(verdict_of(a, b), [])
    assert "`sysbench-tui ab run run` runs an A/B test" in text
