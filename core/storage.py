"""The data folder, atomic writes, ends of logs, and file locks that name their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from .errors import DamagedFileError, DeviceBusyError
from .formatting import format_bytes

HOME_VARIABLE = "SYSBENCH_HOME"
MOST_BYTES = 2**28
"""Largest file of a run that is read in one piece; records have up to a few MiB."""
UNREADABLE_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Failures of decoding JSON: RecursionError where it nests without end."""


def home() -> Path:
    """The data folder: ``$SYSBENCH_HOME``, else the platform's data directory."""
    override = os.environ.get(HOME_VARIABLE)
    return Path(override).expanduser() if override else platformdirs.user_data_path("sysbench-tui")


def make_folder(path: Path, *, exist_ok: bool = True) -> None:
    """Make a folder in the data folder, and that first, for its owner only.

    Runs have names of processes and settings, and whoever can open a lock for reading can hold it.
    A data folder that is there already keeps its rights: it may be shared on purpose.

    Raises:
        FileExistsError: It is there already, unless ``exist_ok``.
        NotADirectoryError: A file is in the place of a folder that it lies in.
    """
    own = home()
    if path.is_relative_to(own) and not own.is_dir():
        try:
            own.parent.mkdir(parents=True, exist_ok=True)
            own.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError as error:
            # Callers take a folder that exists for a name to draw again.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(own)) from error
    path.mkdir(parents=True, exist_ok=exist_ok)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content, never a mixture.

    Raises:
        OSError: Nothing was replaced.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading. A pipe or a device of that name, which might never answer, is none.

    Raises:
        DamagedFileError: It is no regular file.
        OSError: It cannot be opened.
    """
    # Without O_NONBLOCK opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DamagedFileError(f"{path} is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        DamagedFileError: It is none, or larger than ``most_bytes``.
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise DamagedFileError(
                f"{path} has {format_bytes(size)}; more than {format_bytes(most_bytes)} is not read"
            )
        return file.read(most_bytes)


@contextmanager
def locked(path: Path, *, wait: bool = False, who: str = "") -> Iterator[None]:
    """Hold an advisory lock on ``path``, whose content is this process's id.

    The kernel releases it when the process ends, however it ends.

    Raises:
        DeviceBusyError: Another process holds it and ``wait`` is false.
    """
    make_folder(path.parent)
    with path.open("a+b") as file:
        if not _take(file, wait=wait):
            holder = _written_pid(path)
            raise DeviceBusyError(f"{who or path.name} is held by process {holder or 'unknown'}")
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _take(file: IO[bytes], *, wait: bool) -> bool:
    """Take the lock; False if it is held and ``wait`` is false."""
    if wait:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    # `lock_holder` takes the lock for an instant; a real holder keeps it longer.
    for pause in (0.01, 0.04, 0.15, 0):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause)
    return False


def lock_holder(path: Path) -> int | None:
    """The id of the process that holds the lock, or None when it is free."""
    try:
        with open_regular(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _written_pid(path)
    except (FileNotFoundError, DamagedFileError):
        pass  # nobody locks what is no file
    return None


def has_open(pid: int, path: Path) -> bool:
    """Whether that process has the file open, as the holder of a lock has; true where the system
    does not tell.

    A lock that is held in another container, or on another machine, names a process of there:
    here that number may be anybody's.
    """
    descriptors = Path("/proc", str(pid), "fd")
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        wanted = path.stat()
        return any(_is(descriptor, wanted) for descriptor in descriptors.iterdir())
    except OSError:  # it ended, or is somebody else's
        return False


def _is(descriptor: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), wanted)
    except OSError:  # closed since it was listed
        return False


def _written_pid(path: Path) -> int | None:
    text = path.read_bytes().strip()
    return int(text) if text.isdigit() else None


LOG_TAIL_LINES = 60


def last_lines(path: Path, count: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines of a log, undecodable bytes replaced; empty if there is no such file."""
    try:
        with open_regular(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 65536))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except (FileNotFoundError, DamagedFileError):
        return []
    return lines[-count:]
