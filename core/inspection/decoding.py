"""Run the decoding of a file in a child process: both sides of it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO

from sysbench.core.errors import ForeignFileError, SysbenchError
from sysbench.core.inspection.entries import InspectionEntry, inspection_entry, remember
from sysbench.core.inspection.inspection import (
    Finished,
    Inspection,
    Progressed,
    Refused,
    decode_message,
    format_of,
    refusal,
    send_message,
)
from sysbench.core.machine.children import die_with, python_child, take_standard_input
from sysbench.core.machine.host_sampler import (
    die_with_parent,
    limit_data_memory,
    memory_capacity_bytes,
)
from sysbench.core.record.record import Kernels
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import make_folder

MAX_BYTES = 16 * 2**30


class DecodingCancelled(SysbenchError):
    """The decoding was cancelled."""

    exit_code = 130


class Decoding:
    """Decodes one file once, in a child process with a memory limit.

    ``entry`` is the folder of the tables, complete after `run`. If the data folder cannot be
    written, it is a temporary one that is deleted at exit.
    """

    def __init__(
        self,
        path: Path,
        limit_bytes: int = 0,
        device: int | None = None,
        steps: tuple[int, int] | None = None,
        capture: Path | None = None,
    ) -> None:
        """Choose device (None: the busiest) and marked steps (None: all); ForeignFileError if
        unreadable.

        ``limit_bytes`` is the child's memory limit, 0 for `default_limit_bytes`; a million events
        take 1 GiB. ``capture`` is the trace that captured the graphs which the file replays.
        """
        self.path = path.absolute()
        format_of(self.path)  # raises before a child is started
        other = capture.absolute() if capture else None
        if other:
            format_of(other)
        self.entry = inspection_entry(self.path, device, steps, other)
        self._limit_bytes = limit_bytes or default_limit_bytes()
        numbers = "" if steps is None else f"{steps[0]}-{steps[1]}"
        self._choice = ["" if device is None else str(device), numbers, str(other or "")]
        self._lock = Lock()
        self._cancelled = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, show: Callable[[Progressed], None]) -> Inspection:
        """Wait for the tables; return at once if the file was decoded before.

        Raises ForeignFileError with the reason, or DecodingCancelled after `cancel`.
        """
        cached = self.entry.read()
        if cached is not None:
            remember(self.entry, self.path, cached)
            return cached
        with self._log() as log, self._lock:
            if self._cancelled:
                raise DecodingCancelled(f"{self.path}: cancelled")
            arguments = (str(self.path), str(self.entry.path), str(self._limit_bytes))
            process = start_decoder("sysbench.core.inspection", *arguments, *self._choice, log=log)
            self._process = process
        end, code = follow_decoder(process, show)
        if self._cancelled:
            raise DecodingCancelled(f"{self.path}: cancelled")
        match end:
            case Finished(folder=folder):
                if folder:
                    self.entry = InspectionEntry(Path(os.fsdecode(folder)))
                    atexit.register(shutil.rmtree, self.entry.path, ignore_errors=True)
                if (inspection := self.entry.read()) is not None:
                    remember(self.entry, self.path, inspection)
                    return inspection
                raise ForeignFileError(
                    f"{self.entry.path} was removed while it was written: try again"
                )
            case Refused(message=message):
                raise ForeignFileError(message)
            case None:
                raise ForeignFileError(self._describe_crash(code))

    def _log(self) -> IO[bytes]:
        """Open the log of the process, in its entry if that can be made."""
        try:
            make_folder(self.entry.path)
            return self.entry.log_path.open("wb")
        except OSError:
            return Path(os.devnull).open("wb")

    def cancel(self) -> None:
        """End the process; `run` then raises. May be called from another thread."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def _describe_crash(self, code: int) -> str:
        log = self.entry.log_path
        if code == -signal.SIGKILL:
            return f"{self.path}: its decoding was killed, probably for lack of memory"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{self.path}: its decoding ended with {how}; see {log}"


def bundled_run(path: Path) -> RunDirectory | None:
    """Return the run of a bundle, as a folder of the cache; None for other files.

    Raises ForeignFileError if it cannot be read.
    """
    if format_of(path) != "bundle":
        return None
    decoding = Decoding(path)
    decoding.run(lambda progress: None)
    return decoding.entry.bundled_run


def decode_window(trace: Path, count: int) -> tuple[Kernels | None, Path]:
    """Read all ``count`` marked steps of a trace, so that tables are per step.

    Returns the kernels, and the folder of the tables. Raises ForeignFileError.
    """
    decoding = Decoding(trace, steps=(0, count - 1))
    kernels = decoding.run(lambda progress: None).kernels
    return kernels, decoding.entry.as_run.pass_folder("trace")


def default_limit_bytes() -> int:
    """Return half of this machine's memory, at most `MAX_BYTES`."""
    return min(MAX_BYTES, memory_capacity_bytes() // 2)


def start_decoder(module: str, *arguments: str, log: IO[bytes] | int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        python_child(module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )


def follow_decoder(
    process: subprocess.Popen[bytes], show: Callable[[Progressed], None]
) -> tuple[Finished | Refused | None, int]:
    """Show progress until the process ends; return its final message, if any, and exit code."""
    end: Finished | Refused | None = None
    assert process.stdout is not None
    with process:
        try:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # the process died while writing
                match decode_message(line):
                    case Progressed() as step:
                        show(step)
                    case Finished() | Refused() as message:
                        end = message
            return end, process.wait()
        finally:
            process.kill()


def run_decoder(path: Path, limit_bytes: int, work: Callable[[], Finished]) -> int:
    """Do the work of a decoding process with a memory limit; report its end, return the exit code.

    The process exits when its parent does, or when standard input closes.
    """
    die_with_parent(os.getppid())
    die_with(take_standard_input())
    limit_data_memory(limit_bytes)
    try:
        end = work()
    except Exception as error:  # an imported file can raise anything; see the log
        send_message(refusal(error, path, limit_bytes))
        with suppress(OSError):  # the log may be on the full disk that is the error
            traceback.print_exc()
        return 1
    send_message(end)
    return 0
