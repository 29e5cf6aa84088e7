"""Allocating places of two recordings: lines that moved are no other place."""

from __future__ import annotations

import pytest

from sysbench.core.memory.peak_difference import pair_origins
from sysbench.core.record.memory import Origin

Places = dict[tuple[str, ...], int]


def paired(a: Places, b: Places) -> list[tuple[list[str], list[str]]]:
    """The innermost frames of each pair of A and B, sorted."""
    sides = [
        [Origin("c", "p", size, 1, [*stack]) for stack, size in side.items()] for side in (a, b)
    ]
    pairs = pair_origins(*sides)
    return sorted(
        (sorted(origin.stack[0] for origin in left), sorted(origin.stack[0] for origin in right))
        for left, right in pairs
    )


RUN_21, RUN_40 = "run.py:21 <module>", "run.py:40 <module>"
CASES: dict[str, tuple[Places, Places, list[tuple[list[str], list[str]]]]] = {
    "the caller's line moved": (
        {("m.py:14 f", RUN_21): 60},
        {("m.py:14 f", RUN_40): 60},
        [(["m.py:14 f"], ["m.py:14 f"])],
    ),
    "a line was inserted above two that follow each other": (
        {("m.py:14 f",): 10, ("m.py:15 f",): 20},
        {("m.py:15 f",): 11, ("m.py:16 f",): 22},
        [(["m.py:14 f"], ["m.py:15 f"]), (["m.py:15 f"], ["m.py:16 f"])],
    ),
    "another script calls the same function": (
        {("m.py:14 f", "train.py:3 <module>"): 10},
        {("m.py:17 f", "main.py:8 run", "main.py:20 <module>"): 10},
        [(["m.py:14 f"], ["m.py:17 f"])],
    ),
    "a new allocation beside one that moved": (
        {("m.py:14 f",): 10},
        {("m.py:12 f",): 5, ("m.py:15 f",): 10},
        [([], ["m.py:12 f"]), (["m.py:14 f"], ["m.py:15 f"])],
    ),
    "which of three lines is which of two is unknown": (
        {("m.py:1 f",): 10, ("m.py:2 f",): 20, ("m.py:3 f",): 30},
        {("m.py:8 f",): 11, ("m.py:9 f",): 21},
        [(["m.py:1 f", "m.py:2 f", "m.py:3 f"], ["m.py:8 f", "m.py:9 f"])],
    ),
    "a common caller is no reason": (
        {("m.py:14 f", RUN_21): 10},
        {("m.py:30 g", RUN_21): 10},
        [([], ["m.py:30 g"]), (["m.py:14 f"], [])],
    ),
    "operators stand before the function": (
        {("aten::add", "m.py:14 f", "train.py:3 <module>"): 10},
        {("aten::add", "m.py:17 f", "main.py:8 run"): 10},
        [(["aten::add"], ["aten::add"])],
    ),
    "the operator alone is no reason": (
        {("aten::add", "m.py:14 f"): 10},
        {("aten::add", "m.py:17 g"): 10},
        [([], ["aten::add"]), (["aten::add"], [])],
    ),
    "nor is the allocator, in stacks without Python": (
        {("allocator.cpp:5 malloc", "matmul.cpp:7 mm"): 10},
        {("allocator.cpp:5 malloc", "softmax.cpp:9 softmax"): 10},
        [([], ["allocator.cpp:5 malloc"]), (["allocator.cpp:5 malloc"], [])],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_places_are_paired_in_both_orders(case: str) -> None:
    a, b, pairs = CASES[case]
    assert paired(a, b) == pairs
    assert paired(b, a) == sorted((right, left) for left, right in pairs)


def test_stacks_that_were_not_recorded_are_one_place() -> None:
    sides = [[Origin("c", "p", size, 1, [])] for size in (10, 12)]
    assert pair_origins(*sides) == [tuple(sides)]
