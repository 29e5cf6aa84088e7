"""Inputs of sweeps, drawn for each run of the suite.

The seed is in the header of pytest's output; ``SYSBENCH_TEST_SEED`` sets it.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Sequence
from itertools import combinations, product
from typing import TypeVar

SEED_VARIABLE = "SYSBENCH_TEST_SEED"

T = TypeVar("T")


def seed() -> str:
    """Return the seed of this run of the suite; processes that it starts have the same."""
    return os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(10**6)))


def chance(name: str) -> random.Random:
    """Return random numbers for one sweep."""
    return random.Random(f"{seed()} {name}")


def some_of(name: str, values: Sequence[T], number: int) -> list[T]:
    """Return that many of the values, in their order."""
    chosen = sorted(chance(name).sample(range(len(values)), number))
    return [values[index] for index in chosen]


def pairwise(name: str, *dimensions: Sequence[str]) -> list[tuple[str, ...]]:
    """Return rows of the product such that every two values of two dimensions meet in one."""
    rows = list(product(*dimensions))
    order = {row: index for index, row in enumerate(rows)}
    chance(name).shuffle(rows)
    chosen = []
    missing = {pair for row in rows for pair in _pairs(row)}
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        chosen.append(best)
        missing -= _pairs(best)
    return sorted(chosen, key=order.__getitem__)


def _pairs(row: tuple[str, ...]) -> set[tuple[tuple[int, str], ...]]:
    return set(combinations(enumerate(row), 2))
