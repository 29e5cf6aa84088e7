"""Every way a run can end badly, with real processes: typed, reported, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sysbench.core.errors import DeviceBusyError
from sysbench.core.record.blocks import PassName
from sysbench.core.record.events import (
    AnyEvent,
    Noticed,
    PassEnded,
    PassStarted,
    RunEnded,
    StageEntered,
    StepsTimed,
)
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import HOME_VARIABLE
from tests.worker_double.script import replace_workers

ENDLESS = RunSpec(
    device="cpu", steps=1_000_000, warmup=1, step="inference", threads=1, batch=1, context=16
)
SHORT = ENDLESS.changed(steps=12)
PATIENCE_SECONDS = 60


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that only report steps, for tests of their supervisor."""
    replace_workers(monkeypatch, tmp_path / "double", steps=True)


def new_run(spec: RunSpec, *passes: PassName) -> RunDirectory:
    return create_run(spec, passes or ("timing",))


def play(
    run: RunDirectory,
    harm: Callable[[int], None],
    cancel: Cancellation | None = None,
    at: type[AnyEvent] = StepsTimed,
) -> list[AnyEvent]:
    """Supervise in this process; call ``harm`` once, with the worker's pid, at such an event."""
    events, pid, done = [], 0, False
    for event in supervise(run, cancel=cancel):
        events.append(event)
        if isinstance(event, PassStarted):
            pid = event.pid
        if isinstance(event, at) and not done:
            harm(pid)
            done = True
    return events


def the_end(events: list[AnyEvent]) -> tuple[PassEnded, RunEnded]:
    ends = [event for event in events if isinstance(event, PassEnded)]
    assert isinstance(events[-1], RunEnded)
    return ends[-1], events[-1]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.05)


def live_worker(run: RunDirectory) -> int | None:
    """The worker's pid once the detached run has measured steps."""
    pid = None
    for event in run.tail().read():
        if isinstance(event, PassStarted):
            pid = event.pid
        if isinstance(event, StepsTimed):
            return pid
    return None


def detached_run() -> Iterator[RunDirectory]:
    run = new_run(ENDLESS)
    pid = run.start()
    try:
        wait_until(lambda: live_worker(run) is not None, "the first steps")
        yield run
    finally:
        run.stop()
        if psutil.pid_exists(pid):
            os.waitpid(pid, 0)


@pytest.fixture
def detached() -> Iterator[RunDirectory]:
    """An endless run under a detached supervisor, already measuring."""
    yield from detached_run()


@pytest.mark.parametrize(
    ("number", "at", "stage", "said"),
    [
        (signal.SIGKILL, StageEntered, "import", ""),
        (signal.SIGABRT, StageEntered, "import", "Aborted"),
        (signal.SIGSEGV, StepsTimed, "measure", "Segmentation fault"),
    ],
)
def test_a_worker_killed_by_a_signal_is_reported_with_its_stack_in_the_log_tail(
    number: signal.Signals, at: type[AnyEvent], stage: str, said: str
) -> None:
    run = new_run(ENDLESS)
    ended, run_ended = the_end(play(run, lambda pid: os.kill(pid, number), at=at))
    assert (ended.outcome, run_ended.status) == ("killed", "killed")
    assert number.name in ended.detail
    assert ended.detail.endswith(f"in stage {stage}")
    record = run.record()
    assert record.status == "killed"
    assert record.missing["timing"] == ended.detail
    assert said in "\n".join(record.passes[0].log_tail)


def test_a_failed_allocation_in_native_code_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_workers(monkeypatch, tmp_path / "double").write(abort=[1])
    run = new_run(SHORT.changed(memory_limit=2**20))
    ended, run_ended = the_end(list(supervise(run)))
    assert (ended.outcome, run_ended.status) == ("oom", "oom")
    assert ended.detail == (
        "out of memory in measure: tried to allocate an unknown amount (limit 1.00 MiB)"
    )
    record = run.record()
    oom = record.passes[0].oom
    assert oom is not None and oom.message.endswith("'std::bad_alloc'")
    assert "without details" in oom.missing["requested_bytes"]
    assert oom.would_fit, "the limit is known"
    assert "ran out of memory" in record.findings[0].verdict


@pytest.mark.usefixtures("stepping")
def test_what_an_earlier_worker_said_of_memory_is_not_this_ones_end() -> None:
    run = new_run(ENDLESS)
    run.pass_folder("timing").mkdir()
    words = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    run.log_path("timing").write_text(words)
    ended, _ = the_end(play(run, lambda pid: os.kill(pid, signal.SIGABRT)))
    assert ended.outcome == "killed"
    assert "SIGABRT" in ended.detail


@pytest.mark.usefixtures("stepping")
def test_a_silent_worker_is_ended_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    def silence(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        # From here on: importing may take longer, and is silent, too.
        monkeypatch.setenv("SYSBENCH_HANG_SECONDS", "1")

    ended, run_ended = the_end(play(new_run(ENDLESS), silence))
    assert (ended.outcome, run_ended.status) == ("hung", "hung")
    assert "for 1 s" in ended.detail
    assert "measure" in ended.detail


def test_cancelling_ends_the_worker_and_is_reported() -> None:
    cancel = Cancellation()
    pids: list[int] = []

    def cancel_now(pid: int) -> None:
        pids.append(pid)
        cancel.set()

    ended, run_ended = the_end(play(new_run(ENDLESS), cancel_now, cancel, at=StageEntered))
    assert (ended.outcome, run_ended.status) == ("cancelled", "cancelled")
    assert not psutil.pid_exists(pids[0])


@pytest.mark.usefixtures("stepping")
def test_a_failing_pass_keeps_what_earlier_passes_measured() -> None:
    run = new_run(SHORT, "timing", "trace")
    killed: list[int] = []
    pid = 0
    for event in supervise(run):
        if isinstance(event, PassStarted):
            pid = event.pid
            if event.name == "trace":
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    record = run.record()
    assert killed
    assert record.status == "killed"
    assert record.timing is not None
    assert [(one.name, one.outcome) for one in record.passes] == [
        ("timing", "finished"),
        ("trace", "killed"),
    ]


def test_a_killed_supervisor_takes_its_worker_along_and_leaves_a_record_that_says_so(
    detached: RunDirectory,
) -> None:
    worker = live_worker(detached)
    supervisor = detached.pid()
    assert worker is not None
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    assert load_record(detached).status == "killed"
    assert [entry.status for entry in Library().entries()] == ["killed"]
    wait_until(lambda: not psutil.pid_exists(worker), "the worker to die")
    assert not detached.is_live()


class TestBesideALiveRun:
    """Nothing here may touch the one run that is going on."""

    @pytest.fixture(scope="class")
    def live(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
        with pytest.MonkeyPatch.context() as patch:
            home = tmp_path_factory.mktemp("home")
            patch.setenv(HOME_VARIABLE, str(home))
            replace_workers(patch, home / "double", steps=True)
            yield from detached_run()

    @pytest.fixture(autouse=True)
    def its_home(self, own_home: Path, live: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(HOME_VARIABLE, str(live.path.parents[1]))

    def test_with_a_damaged_record_it_is_still_running(self, live: RunDirectory) -> None:
        whole = live.record_path.read_bytes()
        live.record_path.write_bytes(b"{")
        assert load_record(live).status == "running"
        live.record_path.write_bytes(whole)

    def test_a_second_run_is_refused_with_the_holder(self, live: RunDirectory) -> None:
        second = new_run(SHORT)
        with pytest.raises(DeviceBusyError, match=str(live.pid())):
            list(supervise(second, wait=False))
        assert second.record().status == "cancelled"

    def test_two_supervisors_cannot_run_the_same_run(self, live: RunDirectory) -> None:
        with pytest.raises(DeviceBusyError):
            next(supervise(RunDirectory(live.path)))


def test_a_second_run_waits_until_the_first_is_stopped_as_cancelled(
    stepping: None, detached: RunDirectory
) -> None:
    second = new_run(SHORT)
    notices: list[AnyEvent] = []
    for event in supervise(second):
        if isinstance(event, Noticed) and not notices:
            notices.append(event)
            assert detached.stop()
    assert notices
    assert second.record().status == "finished"
    wait_until(lambda: not detached.is_live(), "the supervisor to end")
    assert detached.record().status == "cancelled"
    assert not detached.stop()


def test_who_kept_the_processors_busy_is_on_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_workers(monkeypatch, tmp_path / "double").write(seconds=0.5)
    # By a shell that ends at once: a child of this process would not count as another process.
    begin = '"$0" -c "while True: pass" --token=hunter2 > /dev/null 2>&1 & echo $!'
    shell = ["sh", "-c", begin, sys.executable]
    pid = int(subprocess.run(shell, check=True, capture_output=True).stdout)
    try:
        run = new_run(SHORT, "timing")
        events = list(supervise(run))
    finally:
        os.kill(pid, signal.SIGKILL)
    ended, _ = the_end(events)
    (row,) = load_record(run).passes
    assert row.neighbours == ended.neighbours
    assert any(one.name.startswith("python") and one.cores > 0.01 for one in row.neighbours)
    assert "hunter2" not in run.record_path.read_text() + run.events_path.read_text()


def test_a_pass_that_is_left_out_is_announced_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_workers(monkeypatch, tmp_path / "double").write(starve=(1, 2))
    run = new_run(SHORT, "timing", "trace", "memory")
    notices = [event.message for event in supervise(run) if isinstance(event, Noticed)]
    assert notices == ["trace pass left out: the timing pass ran out of memory"]
    record = load_record(run)
    assert [one.name for one in record.passes] == ["timing", "memory"]
    why = "the trace pass was left out: the timing pass ran out of memory"
    assert record.missing["kernels"] == why


def test_out_of_memory_on_the_cpu_names_phase_and_bytes(oom_run: RunDirectory) -> None:
    ended, run_ended = the_end(list(oom_run.tail().read()))
    assert (ended.outcome, run_ended.status) == ("oom", "oom")
    first = oom_run.record().passes[0]
    assert (first.name, first.outcome) == ("timing", "oom")
    assert first.oom is not None
    # One score matrix: batch × heads × context² × 4 bytes.
    assert first.oom.requested_bytes == 32 * 4 * 512 * 512 * 4
    assert first.oom.phase == "forward"
    assert any("naive_attention" in frame for frame in first.oom.stack)


def supervise_with(run: RunDirectory, setup: str) -> None:
    """Supervise in a child whose limits ``setup`` changes first."""
    code = (
        f"import resource; {setup}\n"
        "from pathlib import Path\n"
        "from sysbench.core.runs.run_directory import RunDirectory\n"
        "from sysbench.core.runs.supervisor import supervise\n"
        f"for _ in supervise(RunDirectory(Path({str(run.path)!r}))): pass\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=PATIENCE_SECONDS)


def test_a_file_that_may_not_grow_ends_the_run_as_disk_full() -> None:
    run = new_run(ENDLESS.changed(context=1))
    limit = 20_000
    supervise_with(run, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))")
    assert run.events_path.stat().st_size <= limit
    record = load_record(run)
    assert record.status == "disk-full"
    assert any(isinstance(event, StepsTimed) for event in run.tail().read())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB; needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_still_holds_its_record(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(small_disk))
    run = new_run(ENDLESS)

    def fill(pid: int) -> None:
        with (small_disk / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                return

    ended, run_ended = the_end(play(run, fill))
    assert (ended.outcome, run_ended.status) == ("disk-full", "disk-full")
    assert run.record().status == "disk-full"
