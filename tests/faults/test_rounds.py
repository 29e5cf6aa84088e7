"""Rounds of a run with real processes: several, added later, torn, killed, two at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import DeviceBusyError, NotFoundError, SpecError
from sysbench.core.record.events import (
    AnyEvent,
    DeviceDescribed,
    PassStarted,
    RunEnded,
    StepsTimed,
    decode_event,
    encode_event,
)
from sysbench.core.record.record import Record, Timing
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import (
    RunDirectory,
    create_run,
    load_record,
    replay_events,
    runs_folder,
)
from sysbench.core.runs.supervised_run import PassPlace
from sysbench.core.runs.supervisor import add_round, disturb_round, supervise
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import HOME_VARIABLE
from tests.worker_double.script import replace_workers

SHORT = RunSpec(device="cpu", steps=12, warmup=1, step="inference", threads=1, batch=1, context=16)
ENDLESS = SHORT.changed(steps=1_000_000)

ADD_ENDLESS_ROUND = """
import sys
from pathlib import Path
from sysbench.core.record.events import StepsTimed
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.supervised_run import PassPlace
from sysbench.core.runs.supervisor import add_round
for event in add_round(RunDirectory(Path(sys.argv[1])), PassPlace(experiment="e")):
    if isinstance(event, StepsTimed):
        print("measuring", flush=True)
"""


def consume(events: Iterator[AnyEvent]) -> list[AnyEvent]:
    return list(events)


def timing_of(run: RunDirectory) -> Timing:
    timing = load_record(run).timing
    assert timing is not None
    return timing


def outcomes(record: Record) -> list[str]:
    return [] if record.timing is None else [one.outcome for one in record.timing.rounds]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run of three rounds, and of the same run with one round."""
    home = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        for repeat in (1, 3):
            run = create_run(SHORT, ["timing"], repeat=repeat)
            consume(supervise(run))
            run.path.rename(home / str(repeat))
    return home


@pytest.fixture(autouse=True)
def own_home(sysbench_home: Path, stored: Path) -> Path:
    return sysbench_home


@pytest.fixture
def stepping(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that only report steps: the test does not depend on what they measure."""
    replace_workers(monkeypatch, tmp_path / "double", steps=True)


def copy_of(stored: Path, repeat: int) -> RunDirectory:
    """A finished run of one or of three rounds, in this test's home."""
    return RunDirectory(shutil.copytree(stored / str(repeat), runs_folder() / str(repeat)))


def test_a_run_of_three_rounds_is_three_processes_and_their_medians(stored: Path) -> None:
    run = copy_of(stored, 3)
    started = [event for event in run.tail().read() if isinstance(event, PassStarted)]
    assert [event.round for event in started] == [1, 2, 3]
    assert len({event.pid for event in started}) == 3
    timing = timing_of(run)
    medians = sorted(one.median_ms or 0.0 for one in timing.rounds)
    assert (timing.interval_of, timing.step.n) == ("rounds", 3)
    assert timing.step.median_ms == medians[1]
    assert (timing.step.ci_low_ms, timing.step.ci_high_ms) == (medians[0], medians[2])
    assert timing.steps is not None
    assert timing.steps.n == 36
    assert len(timing.samples_ms) == 12
    assert run.log_path("timing", 3).is_file()
    record = load_record(run)
    assert record.status == "finished"
    assert [row.step_ms for row in record.passes] == [timing.step.median_ms]
    assert replay_events(run).record() == record


def test_a_round_is_added_to_a_finished_run_with_its_place(stored: Path) -> None:
    run = copy_of(stored, 1)
    single = timing_of(run)
    assert single.rounds == []
    events = consume(add_round(run, PassPlace(experiment="e1", block=2, position=3, side="B")))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "finished"
    first, second = timing_of(run).rounds
    assert (first.index, first.median_ms) == (1, single.step.median_ms)
    assert first.samples_ms == single.samples_ms
    assert (second.index, second.experiment, second.block) == (2, "e1", 2)
    assert (second.position, second.side) == (3, "B")
    assert load_record(run).status == "finished"


def test_the_first_round_of_a_fresh_run_may_be_added_and_knows_its_processors() -> None:
    run = create_run(SHORT.changed(steps=1000), ["timing"])
    consume(add_round(run, PassPlace(experiment="e1", block=0, position=0, side="A")))
    timing = timing_of(run)
    (one,) = timing.rounds
    assert (one.experiment, timing.interval_of) == ("e1", "steps")
    assert load_record(run).status == "finished"
    assert one.cpu_percent is not None
    assert one.own_cpu_percent is not None
    # One thread: never more than one of the cores, and the host's share contains it.
    assert 0 < one.own_cpu_percent <= 1.1 * 100 / (os.cpu_count() or 1)
    assert one.own_cpu_percent <= 1.1 * one.cpu_percent


def killed_in_a_round(run: RunDirectory) -> None:
    """Kill the supervisor with SIGKILL while the round that it added measures."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", ADD_ENDLESS_ROUND, str(run.path)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"measuring\n"
    child.kill()
    child.wait()


def set_steps(run: RunDirectory, steps: int) -> None:
    """Have later rounds of a run take ``steps`` steps, which no command can request."""
    header = run.header()
    changed = msgspec.structs.replace(header, spec=header.spec.changed(steps=steps))
    run.header_path.write_bytes(msgspec.json.encode(changed))


def test_a_supervisor_killed_in_a_round_leaves_a_readable_run_and_the_next_round_goes_on(
    stored: Path,
) -> None:
    run = copy_of(stored, 1)
    before = timing_of(run)
    set_steps(run, 1_000_000)
    killed_in_a_round(run)
    with run.events_path.open("ab") as file:
        file.write(b'{"event":"PassEnded","na')  # and its last line is torn
    torn = load_record(run)
    assert torn.status == "finished"
    assert outcomes(torn) == ["finished", "killed"]
    assert torn.timing is not None
    assert torn.timing.step == before.step
    assert [entry.status for entry in Library().entries()] == ["finished"]
    set_steps(run, SHORT.steps)
    consume(add_round(run))
    after = load_record(run)
    assert outcomes(after) == ["finished", "killed", "finished"]
    assert after.timing is not None
    assert after.timing.step.n == 2
    assert [one.experiment for one in after.timing.rounds] == ["", "e", ""]
    assert (after.status, after.passes[0].outcome) == ("finished", "finished")
    tail = run.tail()
    consume(tail.read())
    assert tail.skipped == 1


@pytest.mark.usefixtures("stepping")
def test_a_killed_worker_costs_its_round_and_no_other() -> None:
    run = create_run(SHORT, ["timing"], repeat=2)
    for event in supervise(run):
        if isinstance(event, PassStarted) and event.round == 1:
            os.kill(event.pid, signal.SIGKILL)
    record = load_record(run)
    assert outcomes(record) == ["killed", "finished"]
    assert record.status == "killed"  # two rounds were asked for, one is there
    assert record.passes[0].detail == "1 of 2 rounds finished"
    assert [finding.rule for finding in record.findings if "round" in finding.rule] == [
        "lost-rounds"
    ]
    consume(add_round(run))
    record = load_record(run)
    assert record.status == "finished"
    assert record.timing is not None
    assert record.timing.step.n == 2


def test_cancelling_keeps_the_rounds_that_finished() -> None:
    run = create_run(SHORT, ["timing", "memory"], repeat=5)
    cancel = Cancellation()
    for event in supervise(run, cancel=cancel):
        if isinstance(event, PassStarted) and event.round == 2:
            cancel.set()
    record = load_record(run)
    assert record.status == "cancelled"
    assert outcomes(record) == ["finished", "cancelled"]
    assert record.timing is not None
    assert record.timing.step.n == SHORT.steps
    assert record.missing["memory"] == "the memory pass did not run"


@pytest.mark.usefixtures("stepping")
def test_two_rounds_cannot_be_added_at_once_and_the_refused_one_leaves_no_trace(
    stored: Path,
) -> None:
    run = copy_of(stored, 1)
    events = add_round(run)
    next(events)
    with pytest.raises(DeviceBusyError, match=str(os.getpid())):
        consume(add_round(RunDirectory(run.path)))
    with pytest.raises(DeviceBusyError):
        disturb_round(RunDirectory(run.path), 1, "")
    consume(events)
    assert outcomes(load_record(run)) == ["finished", "finished"]


@pytest.mark.usefixtures("stepping")
def test_a_busy_device_refuses_a_round_and_leaves_the_run_as_it_was(stored: Path) -> None:
    run, other = copy_of(stored, 1), create_run(ENDLESS, ["timing"])
    before = load_record(run)
    holding = supervise(other)
    next(event for event in holding if isinstance(event, StepsTimed))
    with pytest.raises(DeviceBusyError):
        consume(add_round(run, wait=False))
    assert isinstance(holding, Generator)
    holding.close()
    after = load_record(run)
    assert (after.status, after.timing) == (before.status, before.timing)


def test_a_disturbed_round_stays_listed_and_does_not_count(stored: Path) -> None:
    run = copy_of(stored, 3)
    disturb_round(run, 2, "another process took 80 % of the processors")
    timing = timing_of(run)
    assert [one.counts for one in timing.rounds] == [True, False, True]
    assert timing.step.n == 2
    assert load_record(run).status == "finished"
    disturb_round(run, 2, "")
    assert timing_of(run).step.n == 3
    with pytest.raises(NotFoundError):
        disturb_round(run, 4, "there is none")


@pytest.mark.parametrize("repeat", [0, -1, 101])
def test_only_one_to_a_hundred_rounds_can_be_asked_for(repeat: int) -> None:
    with pytest.raises(SpecError, match="1 to 100"):
        create_run(SHORT, ["timing"], repeat=repeat)


def test_rounds_need_the_timing_pass() -> None:
    with pytest.raises(SpecError, match="timing pass"):
        create_run(SHORT, ["memory"], repeat=2)
    with pytest.raises(SpecError, match="timing pass"):
        consume(add_round(create_run(SHORT, ["memory"])))


def test_a_round_with_another_torch_is_listed_and_does_not_count(stored: Path) -> None:
    run = copy_of(stored, 3)
    lines = run.events_path.read_bytes().splitlines(keepends=True)
    second = [index for index, line in enumerate(lines) if b'"DeviceDescribed"' in line][1]
    event = decode_event(lines[second])
    assert isinstance(event, DeviceDescribed)
    facts = event.facts | {"torch": event.facts["torch"] | {"version": "1.0"}}
    lines[second] = encode_event(msgspec.structs.replace(event, facts=facts))
    run.events_path.write_bytes(b"".join(lines))
    record = replay_events(run).record()
    assert record.timing is not None
    assert [one.counts for one in record.timing.rounds] == [True, False, True]
    assert "measured with 1.0" in record.timing.rounds[1].disturbed
    assert record.environment["torch"]["version"] != "1.0"
