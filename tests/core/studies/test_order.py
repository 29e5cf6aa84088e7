"""The order in which rounds run the cells of a grid favours none of them."""

from __future__ import annotations

from itertools import combinations

from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import Cell, expand, with_variant

ROUNDS = 100


def orders() -> list[list[str]]:
    """Words of the cells' points, round by round."""
    study = with_variant(load_study("precision"), "small")
    by_round: list[list[Cell]] = [[] for _ in range(ROUNDS)]
    for cell in expand(study, repeat=ROUNDS):
        by_round[cell.repeat].append(cell)
    return [[" ".join(cell.point.values()) for cell in cells] for cells in by_round]


def test_every_round_has_all_cells_and_the_first_is_in_the_files_order() -> None:
    study = with_variant(load_study("precision"), "small")
    first, *others = orders()
    assert first == [" ".join(cell.point.values()) for cell in expand(study)]
    assert all(sorted(order) == sorted(first) for order in others)
    assert orders() == [first, *others]  # a study that goes on runs the rest of the same order


def test_either_of_two_cells_comes_first_in_about_half_of_the_rounds() -> None:
    first, *others = orders()
    for a, b in combinations(first, 2):
        earlier = [order.index(a) < order.index(b) for order in others]
        assert 33 <= sum(earlier) <= 66
        # In pairs of rounds that follow each other, all four outcomes occur: they are not in turn.
        assert len(set(zip(earlier[::2], earlier[1::2], strict=False))) == 4
