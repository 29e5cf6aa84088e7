"""The stacked timeline keeps the peak and the order of the stack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from sysbench.core.record.record import Timeline
from sysbench.tui.theme import swatch
from sysbench.tui.widgets.timeline import (
    TimelineView,
    column_samples,
    stacked_column,
    stacking_order,
)

samples = st.lists(st.tuples(st.floats(0.001, 50), st.integers(0, 2**40)), min_size=1, max_size=200)


def timeline_of(points: list[tuple[float, int]]) -> Timeline:
    times, now = [], 0.0
    for gap, _ in points:
        now += gap
        times.append(now)
    live = [count for _, count in points]
    return Timeline(times, live, {"all": live}, [])


@given(samples, st.integers(1, 120))
def test_the_peak_has_a_column(points: list[tuple[float, int]], width: int) -> None:
    timeline = timeline_of(points)
    chosen = column_samples(timeline, width, (timeline.t_ms[0], timeline.t_ms[-1]))
    assert len(chosen) == width
    assert chosen == sorted(chosen)
    assert max(timeline.live_bytes[at] for at in chosen) == max(timeline.live_bytes)


@given(samples, st.integers(1, 120), st.floats(0, 1), st.floats(0, 1))
def test_a_window_shows_its_own_samples(
    points: list[tuple[float, int]], width: int, one: float, other: float
) -> None:
    timeline = timeline_of(points)
    first, last = timeline.t_ms[0], timeline.t_ms[-1]
    begin, end = (first + share * (last - first) for share in sorted((one, other)))
    chosen = column_samples(timeline, width, (begin, end))
    assert len(chosen) == width
    assert chosen == sorted(chosen)
    within = [at for at, t_ms in enumerate(timeline.t_ms) if begin <= t_ms <= end]
    if within:
        highest = max(timeline.live_bytes[at] for at in within)
        assert highest in [timeline.live_bytes[at] for at in chosen]
    # A column without a sample has the one that was in force.
    assert set(chosen) <= {*within, max(min(within, default=chosen[0] + 1) - 1, 0)}


async def test_the_cursor_goes_on_at_every_zoom() -> None:
    # Falling bytes between high ones: the highest of a column is never its last.
    live = [100 - at % 7 for at in range(400)]
    timeline = Timeline([float(at) for at in range(400)], live, {"all": live}, [])
    view = TimelineView(timeline, 200.0)

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield view

    async with Alone().run_test(size=(60, 10)) as pilot:
        for _ in range(5):
            for key, ahead in (("right", 1), ("left", -1), ("shift+right", 1), ("shift+left", -1)):
                await pilot.press("k")
                for _ in range(3):
                    before = view.sample
                    await pilot.press(key)
                    if before in (0, len(live) - 1):
                        break
                    assert (view.sample - before) * ahead > 0
            await pilot.press("k", "plus", "plus")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(1, 30))
def test_a_column_is_as_high_as_its_layers(counts: list[int], height: int) -> None:
    layers = [(count, swatch(at)) for at, count in enumerate(counts)]
    cells = stacked_column(layers, height, 8000 / height)
    assert len(cells) == height
    filled = sum(char != " " for char, _ in cells)
    assert abs(filled - sum(counts) / 8000 * height) < 1


def test_what_is_always_resident_lies_at_the_bottom() -> None:
    timeline = Timeline(
        [0.0, 1.0],
        [5, 9],
        {"activations": [0, 4], "parameters": [5, 5], "never": [0, 0]},
        [],
    )
    assert stacking_order(timeline) == ["parameters", "activations"]
