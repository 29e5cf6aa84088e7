"""The real command in a real terminal: signals restore it, and no run dies with it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sysbench.core.record.events import StepsTimed
from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.core.spec.profiles import save_profile
from sysbench.core.spec.spec import RunSpec
from tests.worker_double.script import PROGRAM, replace_workers

WAIT_SECONDS = 120.0
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
CTRL_O, CTRL_R, CTRL_Z, ENTER = b"\x0f", b"\x12", b"\x1a", b"\r"

ENDLESS = RunSpec(
    model="tiny", steps=100_000, max_seconds=3600.0, context=64, step="inference", threads=1
)
"""Lives until it is stopped, however long a workstation takes to start or to show it."""


class Terminal:
    """`sysbench-tui` in a pseudo-terminal of 100 by 30; its workers take steps, no processor."""

    def __init__(self, home: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            PROGRAM,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "SYSBENCH_HOME": str(home)},
        )
        os.close(slave)
        self.seen = b""

    def read(self) -> None:
        """Take what the app wrote, wait a little for it."""
        if select.select([self.master], [], [], 0.2)[0]:
            # Linux says EIO when the other side is gone.
            with suppress(OSError):
                self.seen += os.read(self.master, 65536)

    def drained(self) -> bool:
        """True, after a read."""
        self.read()
        return True

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:]
            assert self.process.poll() is None, self.seen[-2000:]
            self.read()

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for_exit(self) -> int:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self.read()
        for _ in range(3):
            self.read()
        return self.process.returncode

    def hang_up(self) -> None:
        """Close the terminal without a signal: it is not the process's controlling terminal."""
        os.close(self.master)
        self.master = -1

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            self.hang_up()


@pytest.fixture
def terminal(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    """The workstation."""
    replace_workers(monkeypatch, tmp_path / "double", steps=True)
    terminal = Terminal(sysbench_home)
    yield terminal
    terminal.end()
    for run in list_runs(sysbench_home):
        run.stop()


def start_run(terminal: Terminal, home: Path) -> RunDirectory:
    """Load a profile of it and start that, as a person would; returns when Live shows it."""
    save_profile("saved", ENDLESS, ["timing"])
    terminal.wait_for(b"What to run")
    terminal.wait_for(b"Fits")
    terminal.send(CTRL_O)
    terminal.wait_for(b"Load a profile")
    terminal.send(ENTER)
    terminal.wait_for(f"steps={ENDLESS.steps}".encode())
    terminal.send(CTRL_R)
    terminal.wait_for(b"Step time")
    (run,) = list_runs(home)
    return run


def test_what_is_typed_before_the_form_is_there_is_done_when_it_is(
    terminal: Terminal, sysbench_home: Path
) -> None:
    terminal.wait_for(b"sensors")  # the first frame
    terminal.send(CTRL_R)
    # Its steps take two seconds: Live may be over before a busy machine paints it.
    wait_until(lambda: terminal.drained() and header_paths(sysbench_home))
    (run,) = list_runs(sysbench_home)
    assert run.header().passes == ["timing", "trace", "memory"]


def header_paths(home: Path) -> list[Path]:
    """A run's folder is there before its header."""
    return [run.header_path for run in list_runs(home) if run.header_path.exists()]


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def assert_goes_on(run: RunDirectory) -> None:
    """Steps are timed that no terminal has seen."""
    tail = run.tail()
    list(tail.read())
    wait_until(lambda: any(isinstance(event, StepsTimed) for event in tail.read()))
    assert run.is_live()


F1, ESCAPE, DOWN = b"\x1bOP", b"\x1b", b"\x1b[B"
HELP, BEHIND = b"esc closes", b"Predicted peak"


def test_escape_is_a_key_and_a_prefix(terminal: Terminal) -> None:
    terminal.wait_for(b"What to run")
    for keys in (ESCAPE, ESCAPE + ESCAPE, ESCAPE + F1 + ESCAPE, ESCAPE + DOWN):
        terminal.send(F1)
        terminal.wait_for(HELP)
        terminal.seen = b""
        terminal.send(keys)
        terminal.wait_for(BEHIND)
        terminal.seen = b""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person whose line parts what belongs together."""
    monkeypatch.setenv("ESCDELAY", "20000")


@pytest.mark.usefixtures("patient")
def test_a_sequence_may_come_in_parts(terminal: Terminal) -> None:
    terminal.wait_for(b"What to run")
    for part in (F1[:1], F1[1:]):
        terminal.send(part)
        terminal.read()
    terminal.wait_for(HELP)


def test_ctrl_z_gives_the_shell_back_until_fg(terminal: Terminal) -> None:
    terminal.wait_for(b"What to run")
    terminal.send(CTRL_Z)
    stopped = os.WSTOPPED | os.WNOHANG
    wait_until(lambda: terminal.drained() and os.waitid(os.P_PID, terminal.process.pid, stopped))
    assert LEAVE_ALTERNATE_SCREEN in terminal.seen
    terminal.seen = b""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.wait_for(b"What to run")
    terminal.send(F1)
    terminal.wait_for(HELP)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=lambda one: one.name)
def test_a_signal_restores_the_terminal(terminal: Terminal, number: signal.Signals) -> None:
    terminal.wait_for(b"What to run")
    os.kill(terminal.process.pid, number)
    assert terminal.wait_for_exit() == 128 + number
    assert LEAVE_ALTERNATE_SCREEN in terminal.seen
    assert SHOW_CURSOR in terminal.seen


def test_a_terminal_that_is_killed_ends_the_workstation(terminal: Terminal) -> None:
    terminal.wait_for(b"What to run")
    terminal.hang_up()
    for number in (signal.SIGHUP, signal.SIGCONT):  # what the kernel sends
        os.kill(terminal.process.pid, number)
    assert terminal.process.wait(WAIT_SECONDS) == 128 + signal.SIGHUP


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL], ids=lambda one: one.name)
def test_a_run_outlives_its_terminal_and_is_found_again(
    terminal: Terminal, sysbench_home: Path, number: signal.Signals
) -> None:
    run = start_run(terminal, sysbench_home)
    os.kill(terminal.process.pid, number)
    terminal.wait_for_exit()
    assert_goes_on(run)

    again = Terminal(sysbench_home)
    try:
        again.wait_for(b"is live")
        again.wait_for(b"Step time")
        again.send(b"x")
        again.wait_for(b"Stop the run?")
        again.send(b"s")
        again.wait_for(b"Summary")
        again.process.terminate()
        again.wait_for_exit()
    finally:
        again.end()
    record = run.record()
    assert record.status == "cancelled"
    assert {one.name: one.outcome for one in record.passes} == {"timing": "cancelled"}


def test_a_terminal_that_is_gone_without_a_signal_ends_the_workstation_but_no_run(
    terminal: Terminal, sysbench_home: Path
) -> None:
    run = start_run(terminal, sysbench_home)
    terminal.hang_up()
    assert terminal.process.wait(WAIT_SECONDS) == 128 + signal.SIGHUP
    assert_goes_on(run)
