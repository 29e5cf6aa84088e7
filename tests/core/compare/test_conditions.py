"""Conditions say what the rounds show, and no more than was tested."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sysbench.core.compare.conditions import Condition, conditions_of, others_load
from sysbench.core.record.timing import Round
from tests import factories

Level = Callable[[int, int], float]


def sides(blocks: int, level: Level, seed: int = 1) -> tuple[list[Round], list[Round]]:
    """Rounds of ``blocks`` blocks; ``level`` of block and position, with noise of 0.1 %."""
    draw = random.Random(seed)
    a: list[Round] = []
    b: list[Round] = []
    for block in range(blocks):
        order = draw.choice(("ABBA", "BAAB"))
        for position, side in enumerate(order):
            ms = level(block, position) * draw.gauss(1, 0.001)
            place = {"block": block, "position": position, "started_ns": 4 * block + position}
            (row,) = factories.rounds([ms], experiment="x", side=side, **place)
            (a if side == "A" else b).append(row)
    return a, b


def named(name: str, a: list[Round], b: list[Round]) -> Condition:
    return next(row for row in conditions_of(a, b) if row.name == name)


def test_an_order_effect_is_seen_and_no_drift_with_it() -> None:
    a, b = sides(12, lambda block, position: 10.0 + 0.2 * (position % 2))
    order = named("order", a, b)
    assert order.warns
    assert order.text.startswith("+2.0") and "second round of a pair" in order.text
    assert not named("drift", a, b).warns


def test_a_drift_is_seen_and_no_order_effect_with_it() -> None:
    a, b = sides(12, lambda block, position: 10.0 * 1.002**block)
    drift = named("drift", a, b)
    assert drift.warns
    assert drift.text.startswith("+1.") and "first half of the blocks" in drift.text


@pytest.mark.parametrize("name", ["order", "drift"])
def test_noise_alone_is_called_an_effect_in_about_one_of_twenty(name: str) -> None:
    warned = sum(
        named(name, *sides(8, lambda block, position: 10.0, seed)).warns for seed in range(300)
    )
    assert warned <= 300 * 0.05 + 15


@pytest.mark.parametrize(("name", "blocks"), [("order", 5), ("drift", 7)])
def test_too_few_blocks_are_not_tested(name: str, blocks: int) -> None:
    a, b = sides(blocks, lambda block, position: 10.0 * 1.5 ** (block + position))
    row = named(name, a, b)
    assert row.text.endswith(f"({blocks} blocks: not tested)")
    assert not row.warns
    assert named(name, [], []).text == "not enough data"


def test_rounds_that_do_not_count_are_named_with_every_reason_once() -> None:
    disturbed = factories.rounds([10, 10], disturbed="java came")
    killed = factories.rounds([10], outcome="killed")
    row = named("excluded runs", [*disturbed, *factories.rounds([10])], killed)
    assert (row.a, row.b) == ("2", "1")
    assert row.text == "java came; killed"
    assert named("excluded runs", [], []).text == "none"


def test_what_one_side_alone_saw_deserves_a_look() -> None:
    a = factories.rounds([10, 10], tenants=["java (8)"], clock_reasons=["power cap"])
    b = factories.rounds([10, 10], clock_reasons=["power cap"])
    assert named("other GPU processes", a, b).warns
    assert named("other GPU processes", a, b).a == "java (8) 2"
    assert not named("throttling", a, b).warns
    assert named("throttling", b, b).b == "power cap 2"


def test_loads_and_clocks_are_medians_of_the_rounds_that_count() -> None:
    a = factories.rounds([10], cpu_percent=80.0, own_cpu_percent=50.0, sm_clock_mhz=1980.0)
    b = factories.rounds([10], cpu_percent=55.0, own_cpu_percent=50.0, sm_clock_mhz=1900.0)
    loud = factories.rounds([10], cpu_percent=99.0, own_cpu_percent=1.0, disturbed="java came")
    assert (named("other load", [*a, *loud], b).a, named("other load", a, b).b) == ("30 %", "5 %")
    assert named("SM clock", a, b).b == "1900 MHz"
    assert named("SM clock", a, loud).text == "not measured"
    assert others_load(factories.rounds([10])[0]) is None


def turned(pairs: int, second: float, change: float) -> tuple[list[Round], list[Round]]:
    """Pairs that take turns: the second process is longer by a share, and B by another."""
    draw = random.Random(1)
    a: list[Round] = []
    b: list[Round] = []
    for pair in range(pairs):
        for position, side in enumerate(draw.choice(("AB", "BA"))):
            ms = 10 * (1 + second) ** position * draw.gauss(1, 0.001)
            ms *= 1 + change if side == "B" else 1
            place = {"block": pair, "position": position, "started_ns": pair, "duet": True}
            (row,) = factories.rounds([ms], experiment="x", side=side, **place)
            (a if side == "A" else b).append(row)
    return a, b


@pytest.mark.parametrize("change", [0.0, 4.0])
def test_the_order_of_a_pair_is_told_from_the_change_of_b(change: float) -> None:
    order = named("order", *turned(20, 0.02, change))
    assert order.warns and order.text.startswith(("+2.0", "+1.9"))
    assert "second process of a pair" in order.text
    assert not named("order", *turned(20, 0.0, change)).warns
    assert "half of the pairs" in named("drift", *turned(20, 0.0, change)).text


def test_a_cpu_has_no_rows_of_a_gpu_and_a_busy_one_is_marked() -> None:
    a = factories.rounds([10, 10], cpu_percent=90.0, own_cpu_percent=50.0)
    rows = {row.name: row for row in conditions_of(a, a, on_gpu=False)}
    assert set(rows) == {"order", "drift", "other load", "excluded runs"}
    assert rows["other load"].warns and "other programs" in rows["other load"].text
    calm = factories.rounds([10, 10], cpu_percent=55.0, own_cpu_percent=50.0)
    assert not named("other load", calm, calm).warns
