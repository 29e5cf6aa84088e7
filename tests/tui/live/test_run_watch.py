"""A run is followed by its events alone, torn lines and dead supervisors included."""

from __future__ import annotations

from sysbench.core.runs.directory import RunDirectory
from sysbench.tui.live.run_watch import RunWatch


def test_a_finished_run_is_told_to_its_end(own_run: RunDirectory) -> None:
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
