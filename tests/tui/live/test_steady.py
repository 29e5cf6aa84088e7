"""The strip is constant on an unchanged machine, and shows real changes."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import RenderableType
from textual.screen import Screen

from sysbench.core.machine.sample import DeviceSample, HostSample, Sample
from sysbench.tui import app as tui_app
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.sensors import Hysteresis, StripSampler, StripState

HOST = HostSample(cores=2, cpu=0.98, memory_used_bytes=2**30, memory_total_bytes=2**34)
GPU = DeviceSample(
    index=0,
    name="H100",
    utilization=0.41,
    memory_used_bytes=2**30,
    memory_total_bytes=2**36,
    power_watts=70.0,
    sm_clock_mhz=345,
    temperature_celsius=31,
)


def sample(cpu: float, used: int = 2**30, gpu: DeviceSample | None = None) -> Sample:
    host = replace(HOST, cpu=cpu, memory_used_bytes=used)
    return Sample(t_ns=1, host=host, devices=[gpu] if gpu else [])


JITTERING = [sample(0.98), sample(0.99), sample(0.97, 2**30 + 90 * 2**20), sample(1.0)]


class Jittering(StripSampler):
    """The readings of a machine that does the same all the time; no thread."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = cycle(JITTERING)

    def latest(self) -> Sample | None:
        return next(self._readings)


class Counting(SysbenchApp):
    """Counts what is painted."""

    CSS_PATH = str(Path(tui_app.__file__).with_name("app.tcss"))
    painted = 0

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        self.painted += renderable is not None
        super()._display(screen, renderable)


async def test_a_form_in_which_nothing_is_typed_paints_nothing() -> None:
    app = Counting(Jittering())
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(8):  # until the bars before the figure are all of it
            app._tick()
            await pilot.pause()
        assert app.screen.query("#row-model")
        before = app.painted
        for _ in range(2 * len(JITTERING)):
            app._tick()
            await pilot.pause()
        assert app.painted == before


def test_a_change_beyond_jitter_is_shown_at_once() -> None:
    strip = StripState()
    for reading in (sample(0.98), sample(0.94), sample(0.94, 2**31)):
        strip.take(reading)
    assert strip.parts()[0].endswith("94 %") and strip.parts()[1].startswith("2.0/")


def test_an_idle_gpu_does_not_stay_two_percent_busy() -> None:
    strip = StripState()
    for share in (0.02, 0.0):
        strip.take(sample(0.5, gpu=replace(GPU, utilization=share)))
    assert strip.parts()[1].endswith(" 0 %")


def test_a_figure_that_is_gone_is_not_kept() -> None:
    hysteresis = Hysteresis()
    hysteresis.apply(sample(0.5, gpu=GPU))
    (gone,) = hysteresis.apply(sample(0.5, gpu=replace(GPU, power_watts=None))).devices
    assert gone.power_watts is None and gone.temperature_celsius == 31


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_what_is_shown_was_read_and_is_near(cpu: list[float]) -> None:
    hysteresis = Hysteresis()
    for number, value in enumerate(cpu, 1):
        shown = hysteresis.apply(sample(value)).host.cpu
        assert shown in cpu[:number] and abs(shown - value) < 0.03
