"""Directory of a job that one process at a time works on: a run, an experiment or a study."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec

from sysbench.core.errors import DamagedFileError, DeviceBusyError, NotFoundError
from sysbench.core.machine.children import python_child, start_session
from sysbench.core.storage import (
    UNREADABLE_JSON,
    has_open,
    lock_holder,
    locked,
    make_folder,
    read_json,
    write_atomically,
)

T = TypeVar("T")


class Cancellation(threading.Event):
    """Event that ends the job as ``cancelled``; set it from any thread or a signal handler."""


class JobDirectory:
    """One job on disk. The process that works on it holds its lock and is the only writer."""

    kind: ClassVar[str]
    """Noun of such a job in messages."""
    working: ClassVar[str]
    """What its process does, in the passive: ``is supervised``."""
    module: ClassVar[str]
    """Module that works on the directory named on its command line."""
    lock_name: ClassVar[str]
    log_name: ClassVar[str] = "runner.log"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.root = path.parent.parent

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def lock_path(self) -> Path:
        return self.path / self.lock_name

    def hold(self) -> AbstractContextManager[None]:
        """Hold the job's lock inside ``with``; DeviceBusyError if another process works on it."""
        return locked(self.lock_path, who=f"{self.kind} {self.id}")

    def pid(self) -> int | None:
        return lock_holder(self.lock_path)

    def is_live(self) -> bool:
        return self.pid() is not None

    def start(self, *options: str) -> int:
        """Work on the job in a detached process, and return the process id.

        It survives a closed terminal and the end of this process. Its output goes to a log in the
        directory.
        """
        command = python_child(self.module, str(self.path), *options)
        return start_session(command, self.path / self.log_name)

    def stop(self) -> bool:
        """Signal the process that works on the job to end; return false if there is none.

        Completed work stays. DeviceBusyError if the process is not on this system.
        """
        pid = self.pid()
        if pid is None:
            return False
        if not has_open(pid, self.lock_path):
            if self.pid() != pid:  # it ended just now
                return False
            raise DeviceBusyError(
                f"{self.kind} {self.id} {self.working} in another container or on another "
                "machine: stop it there"
            )
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            # A process that Ctrl+Z or a debugger stopped does not handle the signal until it runs.
            os.kill(pid, signal.SIGCONT)
        return True

    def read(self, name: str, kind: type[T]) -> T:
        """Decode a JSON file; DamagedFileError if it is absent or unreadable."""
        path = self.path / name
        try:
            return msgspec.json.decode(read_json(path), type=kind)
        except (OSError, *UNREADABLE_JSON) as error:
            raise DamagedFileError(f"{path}: {error}") from error

    def write(self, name: str, value: msgspec.Struct) -> None:
        data = msgspec.json.format(msgspec.json.encode(value), indent=2)
        write_atomically(self.path / name, data)


J = TypeVar("J", bound=JobDirectory)


def new_job_folder(parent: Path, created_ns: int, *labels: str) -> Path:
    """Make a folder that is named by its local time, labels, and four random digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(created_ns / 1e9))
    while True:
        path = parent / "-".join((stamp, *labels, secrets.token_hex(2)))
        with suppress(FileExistsError):  # one of the same second has the same digits
            make_folder(path, exist_ok=False)
            return path


def job_with_id(text: str, jobs: Sequence[J], none: str) -> J:
    """Find the job with that id, or with a unique part of an id; else NotFoundError."""
    matches = [job for job in jobs if job.id == text] or [job for job in jobs if text in job.id]
    if not matches:
        raise NotFoundError(none)
    if len(matches) > 1:
        some = ", ".join(job.id for job in matches[:4])
        more = " …" if len(matches) > 4 else ""
        raise NotFoundError(f"{matches[0].kind} {text!r} is ambiguous: {some}{more}")
    return matches[0]


def work_until_signal(work: Callable[[Path, Cancellation], Iterable[object]]) -> int:
    """Do the work on the directory named on the command line, without output; return 0.

    SIGTERM and SIGINT set the cancellation; SIGHUP is ignored.
    """
    cancel = Cancellation()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: cancel.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for _ in work(Path(sys.argv[1]), cancel):
        pass
    return 0


def end_torn_line(file: int) -> None:
    """Terminate the last line of a file, open to read and append, if a crash left it incomplete."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")
