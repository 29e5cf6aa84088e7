"""The stacked timeline keeps the peak and the order of the stack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from sysbench.core.record.record import Timeline
from sysbench.tui.theme import swatch, swatch_of
from sysbench.tui.widgets.timeline import (
    TimelineView,
    column_samples,
    place_in_steps,
    stacked_column,
    stacking_order,
    steps_window,
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


PHASES = [
    ("build", 0.0, 40.0),
    ("forward", 50.0, 60.0),
    ("backward", 60.0, 70.0),
    ("forward", 70.0, 80.0),
    ("backward", 80.0, 100.0),
]


def test_a_time_is_a_phase_of_a_step() -> None:
    timeline = Timeline([5.0, 100.0], [1, 1], {"all": [1, 1]}, PHASES)
    assert place_in_steps(timeline, 10.0) == "build"
    assert place_in_steps(timeline, 45.0) == ""
    assert place_in_steps(timeline, 65.0) == "backward of step 1 of 2"
    assert place_in_steps(timeline, 90.0) == "backward of step 2 of 2"
    once = Timeline([5.0, 100.0], [1, 1], {"all": [1, 1]}, PHASES[:3])
    assert place_in_steps(once, 65.0) == "backward"


async def test_the_build_is_shown_on_request_or_with_a_cursor_in_it() -> None:
    times = [float(at) for at in range(101)]
    timeline = Timeline(times, [1] * 101, {"all": [1] * 101}, PHASES)
    assert steps_window(timeline) == (50.0, 100.0)
    view, of_build = TimelineView(timeline, 65.0), TimelineView(timeline, 20.0)
    assert of_build.window == (0.0, 100.0)

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield view

    async with Alone().run_test(size=(60, 10)) as pilot:
        assert view.window == (50.0, 100.0)
        await pilot.press("minus", "minus")
        assert view.window == (0.0, 100.0)
        await pilot.press("plus", "plus")
        assert view.window[1] - view.window[0] == 25.0
        # Within the build there are no steps as a whole.
        await pilot.press("home", "minus")
        assert view.window == (0.0, 100.0)
        await pilot.press("plus")
        assert view.window == (0.0, 25.0)
        await pilot.press("k", "minus")
        assert view.window == (50.0, 100.0)
        await pilot.press("home", "left")  # beyond the first step
        assert view.window == (0.0, 100.0)


def test_the_top_of_a_textured_layer_does_not_look_like_a_solid_one() -> None:
    gradients, inputs = swatch_of("gradients"), swatch_of("inputs")
    assert gradients.colour == inputs.colour
    tops = [stacked_column([(15, look)], 2, 10)[1] for look in (gradients, inputs)]
    assert [char for char, _ in tops] == ["▄", "▄"]
    assert len({kind for _, kind in tops}) == 2
