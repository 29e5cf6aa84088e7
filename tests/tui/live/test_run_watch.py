"""A run is followed by its events alone, torn lines and dead supervisors included."""

from __future__ import annotations

from pathlib import Path

from sysbench.core.record import events
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.live.run_watch import LiveView, RunWatch


def test_a_finished_run_is_read_to_its_end(own_run: RunDirectory) -> None:
    watch = RunWatch(own_run)
    assert watch.poll()
    view = watch.view
    assert watch.over and view.status == "finished"
    assert view.passes == dict.fromkeys(("timing", "trace", "memory"), "finished")
    assert view.step_count == 12 == len(view.steps_ms)
    assert view.median_ms and view.first_step_ms
    assert {"forward", "backward", "optimizer"} <= view.phase_medians().keys()
    assert [label for _, label in view.marks if label in view.passes] == list(view.passes)
    assert not watch.poll()


def test_a_torn_line_waits_for_its_end(own_run: RunDirectory) -> None:
    whole = own_run.events_path.read_bytes()
    lines = whole.splitlines(keepends=True)
    own_run.events_path.write_bytes(b"".join(lines[:-1]) + lines[-1][:10])
    watch = RunWatch(own_run)
    watch.poll()
    # Nobody holds the run's lock and the last word is missing: the supervisor is gone.
    assert watch.view.status == "lost"

    own_run.events_path.write_bytes(whole)
    assert watch.poll()
    assert watch.view.status == "finished"


def test_what_workers_print_cannot_steer_the_terminal(own_run: RunDirectory) -> None:
    own_run.log_path("memory").write_bytes(b"\x1b]0;title\x07[red]not markup[/]\xff\n")
    watch = RunWatch(own_run)
    watch.poll()
    line = next(line for line in watch.view.lines if line.startswith("memory│"))
    assert "[red]not markup[/]" in line
    assert line.isprintable()


def test_each_round_resets_its_steps_and_a_later_one_reopens_an_ended_run() -> None:
    view = LiveView()
    steps = events.StepsTimed(
        first_index=0, step_ms=[1.0, 2.0], phases_ms={"forward": [1.0, 2.0]}, median_ms=1.5,
        half_width=None,
    )  # fmt: skip
    view.take(events.RunStarted(run="r", pid=1, identity="i", passes=["timing"], spec={}, repeat=2))
    view.take(events.PassStarted(name="timing", pid=2))
    view.take(steps)
    assert view.round_text == "round 1 of 2"
    view.take(events.PassStarted(name="timing", pid=3, round=2))
    assert (view.step_count, len(view.steps_ms), view.phases_ms) == (0, 0, {})
    assert (view.median_ms, view.round_text) == (None, "round 2 of 2")
    view.take(events.RunEnded(status="finished"))
    view.take(events.PassStarted(name="timing", pid=4, round=3))
    assert (view.status, view.round_text) == ("running", "round 3")
    view.take(events.RoundDisturbed(round=3, why="a neighbour"))
    assert view.lines[-1].endswith("round 3 does not count: a neighbour")


def test_a_log_line_without_end_does_not_hold_the_log_up(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.pass_folder("timing").mkdir()
    run.events_path.write_bytes(events.encode_event(events.PassStarted(name="timing", pid=1)))
    run.log_path("timing").write_bytes(b"x" * 100_000 + b"\nthe end\n")
    watch = RunWatch(run)
    watch.poll()
    watch.poll()
    assert watch.view.lines[-1] == "timing│ the end"
