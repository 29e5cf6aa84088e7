"""Cards that a prediction can be for: found as people write them, and none without its source."""

from __future__ import annotations

import re

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.machine.peaks import find_card, find_gpu, gpus, known_cards, sold_as

CARDS = [(gpu, key, card) for gpu in gpus().values() for key, card in gpu.cards.items()]
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+")


@pytest.mark.parametrize(("gpu", "key", "card"), CARDS, ids=lambda value: str(value)[:20])
def test_a_card_is_a_gpu_of_the_table_with_figures_from_somewhere(
    gpu: object, key: str, card: object
) -> None:
    known = known_cards()[key]
    assert find_gpu(known.name) is gpu
    assert re.fullmatch(r"[0-9]+\.[0-9]", known.capability)
    assert ISSUE.search(known.source)
    if known.driver_bytes is not None:
        assert known.source.count("#") > 1  # what CUDA has of it was found elsewhere
        # Of all cards found, a driver keeps between 200 and 900 MiB.
        assert 200 < known.driver_bytes / 2**20 < 900


def test_every_card_has_a_key_of_its_own() -> None:
    assert len(known_cards()) == len(CARDS) > 0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("rtx 4090", "rtx4090"),
        ("RTX-4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("A100-80GB", "a100-80gb"),
        ("Tesla T4", "t4"),
    ],
)
def test_a_card_is_found_as_people_write_it(text: str, key: str) -> None:
    assert find_card(text).key == key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a100", "did you mean a100-80gb or a100-40gb?"),
        ("h1000", "did you mean 'h100'?"),
        ("v100", "set --capacity"),
        ("mi300x", "set --capacity"),
        ("H100 PCIe", "set --capacity"),
        ("", "known: "),
    ],
)
def test_a_card_that_is_not_known_is_not_guessed(text: str, words: str) -> None:
    with pytest.raises(SpecError) as error:
        find_card(text)
    assert words in str(error.value)


def test_cards_are_sold_by_less_than_they_have() -> None:
    assert [card.key for card in sold_as(80 * 10**9)] == ["a100-80gb", "h100"]
    assert sold_as(60 * 10**9) == []
