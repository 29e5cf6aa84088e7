"""A full collection comes when nobody types."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from sysbench.tui.app import SysbenchApp

from ..conftest import CannedSampler

USUAL = (50, 2, 400)
"""So few objects that a key's answer makes many times more."""


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """The generations that are collected from now on, with a collector that is turned off."""
    generations: list[int] = []

    def note(phase: str, told: dict[str, Any]) -> None:
        if phase == "start":
            generations.append(told["generation"])

    usual = gc.get_threshold()
    gc.disable()
    gc.set_threshold(*USUAL)
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    gc.unfreeze()
    gc.set_threshold(*usual)
    gc.enable()


def make_garbage() -> None:
    """More than the usual thresholds, in objects that stay reachable."""
    kept = [[number] for number in range(USUAL[0] * (USUAL[1] + 1) * (USUAL[2] + 1) * 2)]
    del kept


async def test_keys_wait_for_no_full_collection_and_quiet_ticks_make_one(
    collected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ticks when the test says so: on a busy machine quiet ticks come while a key is answered.
    monkeypatch.setattr("sysbench.tui.app.REFRESH_SECONDS", 3600.0)
    app = SysbenchApp(CannedSampler())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app._tick()
        collected.clear()
        for key in ("down", "down", "9", "f1", "escape"):
            await pilot.press(key)
            make_garbage()
            app._tick()
        assert {0, 1} <= {*collected} and 2 not in collected
        for _ in range(3):
            make_garbage()
            app._tick()
        assert 2 in collected
    assert gc.get_threshold() == USUAL


async def test_a_tick_with_nothing_to_collect_collects_nothing(collected: list[int]) -> None:
    app = SysbenchApp(CannedSampler())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.garbage.tick()
        make_garbage()
        for _ in range(3):
            app.garbage.tick()
        collected.clear()
        for _ in range(20):
            app.garbage.tick()
        assert 2 not in collected


async def test_one_who_types_without_end_is_not_waited_for_for_ever(collected: list[int]) -> None:
    app = SysbenchApp(CannedSampler())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.garbage.tick()
        collected.clear()
        for _ in range(20):
            make_garbage()
            app.garbage.note_input()
            app.garbage.tick()
        assert 2 in collected
