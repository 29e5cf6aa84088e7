"""A program in a pseudo-terminal, as the benchmarks of the screens start and read them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

OURS = [sys.executable, "-P", "-m", "sysbench.tui.cli"]
STEADY = """
from itertools import cycle
from sysbench.core.machine.sample import HostSample, Sample
from sysbench.tui.live.sensors import StripSampler
readings = cycle(
    Sample(host=HostSample(cores=2, cpu=cpu, memory_used_bytes=2**30, memory_total_bytes=2**34))
    for cpu in (0.98, 0.99, 0.97, 1.0)
)
StripSampler.latest = lambda sampler: next(readings)
from sysbench.tui.cli import main
main([])
"""
"""The workstation on a machine that does the same: the sensors alone are played."""
SIZES = ((80, 24), (160, 48))
SLOW_LINE = 20 * 2**10
"""Bytes a second."""
PATIENCE = 30.0
STILL = 0.4
"""Seconds without a byte, after which the screen has settled; a cursor blinks every 0.5 s."""


@dataclass
class Terminal:
    """A program in a pseudo-terminal.

    Attributes:
        seen: What it wrote.
        rate: Bytes a second that the line to the terminal carries, as a slow connection does; 0
            for all that come.
    """

    pid: int
    master: int
    seen: bytearray = field(default_factory=bytearray)
    rate: float = 0.0

    def read(self, wait: float) -> None:
        """Return what arrives within the given seconds."""
        if select.select([self.master], [], [], wait)[0]:
            part = os.read(self.master, 2**9 if self.rate else 2**16)
            if self.rate:
                time.sleep(len(part) / self.rate)
            self.seen += part

    def read_for(self, seconds: float) -> int:
        """Read for so long; returns the number of bytes that came."""
        before, end = len(self.seen), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)
        return len(self.seen) - before

    def answered(self, key: bytes, words: bytes) -> float:
        """Seconds from a key to these words behind all that was written before."""
        before, began = len(self.seen), time.monotonic()
        self.press(key)
        while words not in self.seen[before:]:
            self.read(PATIENCE)
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError(f"no {words!r} after {key!r}")
        return time.monotonic() - began

    def stills(self, key: bytes) -> tuple[int, float]:
        """Type a key and read until the screen has settled.

        Returns:
            Bytes that came, and seconds to the last of them.

        Raises:
            TimeoutError: Nothing came, or it never settles.
        """
        before, began = len(self.seen), time.monotonic()
        self.press(key)
        last = began
        while time.monotonic() - last < (STILL if len(self.seen) > before else PATIENCE):
            read = len(self.seen)
            self.read(0.05)
            if len(self.seen) > read:
                last = time.monotonic()
            if last - began > PATIENCE:
                break
        if not 0 < last - began <= PATIENCE:
            raise TimeoutError(f"no still screen after {key!r}")
        return len(self.seen) - before, last - began

    def wait_for(self, words: bytes, seconds: float = 60.0) -> None:
        """Read until these words were written.

        Raises:
            TimeoutError: They were not.
        """
        end = time.monotonic() + seconds
        while words not in self.seen:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"no {words!r} within {seconds:g} s: {bytes(self.seen[-300:])!r}"
                )
            self.read(0.2)

    def press(self, keys: bytes) -> None:
        """Type these."""
        os.write(self.master, keys)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def exit_code(self) -> int:
        """Wait for a program that ends by itself."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)

    def end(self) -> float:
        """Kill the program; returns the CPU seconds that it used."""
        os.kill(self.pid, signal.SIGKILL)
        _, _, used = os.wait4(self.pid, 0)
        os.close(self.master)
        return used.ru_utime + used.ru_stime


def started(command: Sequence[str], home: str, columns: int, lines: int) -> Terminal:
    """A program in a terminal of its own, with true colours."""
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        shown = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "SYSBENCH_HOME": home}
        # Test runners set these, and Textual prefers them to the size of the terminal.
        kept = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
        os.execvpe(command[0], list(command), {**kept, **shown})
    return Terminal(pid, master)
