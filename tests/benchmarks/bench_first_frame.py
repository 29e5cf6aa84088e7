"""How long from starting the command to the first frame with its words on it.

Beside it the same for a bare Python and for a bare import of Textual, in the same run, so
that the figure can be read on any machine.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIES = 7
WORDS = b"What to run"
SIZE = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def first_frame_seconds(home: str) -> float:
    """From spawn until the form's title has been written to the terminal."""
    program = str(Path(sys.executable).with_name("sysbench-tui"))
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(program, [program], {**os.environ, **SIZE, "SYSBENCH_HOME": home})
    seen = b""
    try:
        while WORDS not in seen:
            ready, _, _ = select.select([terminal], [], [], 20)
            if not ready:
                raise TimeoutError(f"no first frame within 20 s, only {seen[-200:]!r}")
            seen += os.read(terminal, 2**16)
        return time.perf_counter() - began
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def seconds_of(code: str) -> float:
    """A fresh interpreter that runs the code and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    frames, textual, bare = [], [], []
    with tempfile.TemporaryDirectory() as home:
        for _ in range(TRIES):
            frames.append(first_frame_seconds(home))
            textual.append(seconds_of("import textual.app, textual.widgets"))
            bare.append(seconds_of("pass"))
    first, imports, python = map(statistics.median, (frames, textual, bare))
    print(f"first frame: median of {TRIES} interleaved tries, {os.cpu_count()} cores")
    print(f"  sysbench-tui      {first:.3f} s   from {min(frames):.3f} to {max(frames):.3f}")
    print(f"  import textual    {imports:.3f} s   ratio {first / imports:.2f}")
    print(f"  python -c pass    {python:.3f} s")


if __name__ == "__main__":
    main()
