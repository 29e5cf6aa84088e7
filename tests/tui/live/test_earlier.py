"""The time that is left comes from runs of the same spec on the same host alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from sysbench.core.record import events
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.live.run_watch import Earlier, LiveView, earlier_runs, left_seconds


def again(run: RunDirectory, stem: str, **changes: object) -> RunDirectory:
    """A later run of a run's spec, changed in some keys, which has only just been made."""
    header = run.header()
    spec = header.spec.changed(**changes) if changes else header.spec
    later = msgspec.structs.replace(
        header, id=stem, spec=spec, created_ns=header.created_ns + 10**9
    )
    folder = run.path.with_name(stem)
    folder.mkdir()
    (folder / "run.json").write_bytes(msgspec.json.encode(later))
    return RunDirectory(folder)


def test_earlier_runs_are_of_the_same_spec_and_host(own_run: RunDirectory) -> None:
    record = own_run.record()
    earlier = earlier_runs(again(own_run, "20300101-000000-same"), record.environment)
    took = {row.name: row.seconds for row in record.passes}
    assert {name: earlier.expected(name) for name in took} == took
    assert earlier.count("timing") == 1
    assert set(earlier.stages["memory"]) >= {"build", "warmup", "measure"}
    assert sum(earlier.stages["timing"].values()) <= took["timing"]
    other = again(own_run, "20300101-000001-other", batch=7)
    assert earlier_runs(other, record.environment) == Earlier()
    elsewhere = {**record.environment, "cpu": {"model": "another"}}
    assert earlier_runs(RunDirectory(other.path.with_name("20300101-000000-same")), elsewhere) == (
        Earlier()
    )


def test_a_run_that_cannot_be_read_is_left_out(own_run: RunDirectory, tmp_path: Path) -> None:
    environment = own_run.record().environment
    shutil.copytree(own_run.path, own_run.path.with_name("20200101-000000-torn"))
    torn = RunDirectory(own_run.path.with_name("20200101-000000-torn"))
    torn.record_path.write_bytes(b"{")
    torn.events_path.unlink()
    assert earlier_runs(again(own_run, "20300101-000000-same"), environment).count("trace") == 1


def test_what_is_left_is_the_rest_of_this_pass_and_all_of_the_others() -> None:
    view = LiveView()
    view.take(
        events.RunStarted(
            t_ns=0, run="r", pid=1, identity="i", passes=["timing", "memory"], spec={}, repeat=3
        )
    )
    view.take(events.PassStarted(t_ns=0, name="timing", pid=2))
    known = Earlier(seconds={"timing": [9.0, 10.0, 30.0], "memory": [5.0]})
    second = 10**9
    # The rest of the first round, two more rounds of 10 s, and the memory pass.
    assert left_seconds(view, known, 4 * second) == pytest.approx(6 + 20 + 5)
    assert left_seconds(view, known, 11 * second) is None, "longer than before: not known"
    assert left_seconds(view, Earlier(seconds={"timing": [9.0]}), 0) is None
    view.take(
        events.PassEnded(
            t_ns=9 * second, name="timing", outcome="finished", detail="", seconds=9.0, exit_code=0
        )
    )
    assert left_seconds(view, known, 9 * second) == pytest.approx(5)
