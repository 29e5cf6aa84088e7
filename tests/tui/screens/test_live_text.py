"""Figures of a live run are of what was measured, and silent where nothing was."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.machine.sample import DeviceSample, HostSample, Sample
from sysbench.core.record import events
from sysbench.tui.live.run_watch import Earlier, LiveView
from sysbench.tui.screens.live_text import (
    joules_a_step,
    median_line,
    passes_lines,
    phases_line,
    sensor_words,
)

SECOND = 10**9
HOST = HostSample(cores=8, cpu=0.1, memory_used_bytes=1, memory_total_bytes=2)


def measuring(watts: float, reasons: list[str]) -> LiveView:
    """Twenty steps of 100 ms each from the first second on, sampled twice a second."""
    view = LiveView()
    spec = {"device": "cuda", "batch": 2, "context": 5, "until": 0.01}
    started = events.RunStarted(t_ns=0, run="r", pid=1, identity="i", passes=["timing"], spec=spec)
    for event in (
        started,
        events.PassStarted(t_ns=0, name="timing", pid=2),
        events.StageEntered(t_ns=SECOND, stage="measure"),
    ):
        view.take(event)
    for second in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5):
        gpu = DeviceSample(
            index=0, name="NVIDIA H100", energy_joules=1e6 + watts * second, clock_reasons=reasons
        )
        sample = Sample(t_ns=int(second * SECOND), devices=[gpu], host=HOST)
        view.take(events.TelemetrySampled(t_ns=sample.t_ns, sample=msgspec.to_builtins(sample)))
    for batch in range(4):
        view.take(
            events.StepsTimed(
                t_ns=SECOND + (batch + 1) * SECOND // 2,
                first_index=5 * batch,
                step_ms=[100.0] * 5,
                phases_ms={},
                median_ms=100.0,
                half_width=0.02,
            )
        )
    return view


def test_energy_of_a_step_is_by_the_counter_over_the_steps_between_two_samples() -> None:
    view = measuring(300.0, ["power cap", "idle"])
    assert list(view.step_ends_ns) == [SECOND + step * SECOND // 10 for step in range(1, 21)]
    assert joules_a_step(view, "cuda") == pytest.approx(30.0)
    assert (
        sensor_words(view, None) == "30.0 J a step · 3,000 mJ a token · clock limited by power cap"
    )
    view.step_ends_ns.clear()
    assert joules_a_step(view, "cuda") is None
    assert sensor_words(LiveView(), None) == ""


def test_silence_is_reported_after_twenty_steps_and_five_seconds() -> None:
    view = measuring(300.0, [])
    last_ns = view.stepped_ns
    assert "no step" not in str(median_line(view, last_ns + 4 * SECOND))
    assert "! no step for 6 s" in str(median_line(view, last_ns + 6 * SECOND))
    view.take(events.StageEntered(t_ns=last_ns, stage="analyse"))
    assert "no step" not in str(median_line(view, last_ns + 60 * SECOND))


def test_the_end_of_timing_fits_one_line() -> None:
    view = measuring(300.0, [])
    assert str(median_line(view, view.stepped_ns)) == "100.0 ms ±2 %  n 20, target ±1 %"
    view.spec["until"] = 0.05
    reason = {"stop_reason": "the limit of 15 s was reached"}
    view.take(events.ResultReported(t_ns=9 * SECOND, block="timing", data=reason))
    whole = "100.0 ms ±2 %  n 20  ✓ within ±5 %  stopped at 15 s"
    assert str(median_line(view, view.stepped_ns)) == whole
    assert str(median_line(view, view.stepped_ns, 45)) == (
        "100.0 ms ±2 %  ✓ within ±5 %  stopped at 15 s"
    )
    assert str(median_line(view, view.stepped_ns, 40)) == "100.0 ms ±2 %  ✓ within ±5 %"
    view.spec["until"] = 0.01
    assert "! not within ±1 %  stopped at 15 s" in str(median_line(view, view.stepped_ns))
    view.spec["steps"] = 20
    view.stop_reason = "the 20 steps asked for are done"
    assert str(median_line(view, view.stepped_ns)) == "100.0 ms ±2 %  n 20  all 20 steps asked for"


def test_a_pass_that_is_left_out_says_which_and_why() -> None:
    view = LiveView(passes=dict.fromkeys(("timing", "trace", "memory"), "waiting"))
    view.take(events.PassStarted(t_ns=SECOND, name="timing", pid=2))
    ended = events.PassEnded(
        t_ns=2 * SECOND, name="timing", outcome="oom", detail="no", seconds=1.0, exit_code=1
    )
    view.take(ended)
    assert view.passes == {"timing": "oom", "trace": "left-out", "memory": "waiting"}
    lines = str(passes_lines(view, Earlier(), 3 * SECOND, 80, 6)).split("\n")
    assert "– trace    left out: the timing pass ran out of memory" in lines[1]


def test_no_figure_of_a_phase_is_cut() -> None:
    view = LiveView()
    medians = {"forward": 14.1, "backward": 19.4, "optimizer": 3.68, "zero-grad": 0.27}
    view.take(
        events.StepsTimed(
            t_ns=1,
            first_index=0,
            step_ms=[40.0],
            phases_ms={name: [took] for name, took in medians.items()},
            median_ms=40.0,
            half_width=None,
        )
    )
    whole = str(phases_line(view, 200))
    assert whole.endswith(" zero-grad 0.27 1 %")
    without_shares = "forward 14.1  backward 19.4  optimizer 3.68  zero-grad 0.27"
    assert str(phases_line(view, len(without_shares))) == without_shares
    for width in range(20, len(whole)):
        line = str(phases_line(view, width))
        assert len(line) <= width
        assert line.endswith(("%", "0.27", "  …"))
    assert str(phases_line(view, 20)) == "backward 19.4  …"


def test_a_line_of_a_pass_gives_up_whole_facts() -> None:
    view = measuring(300.0, [])
    lines = {width: str(passes_lines(view, Earlier(), 9 * SECOND, width, 6)) for width in (80, 120)}
    assert "9.0 s · no earlier run of this spec" in lines[120]
    assert "no earlier" not in lines[80] and "9.0 s" in lines[80]
    assert all(len(line) == width for width, line in lines.items())
