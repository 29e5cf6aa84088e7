"""The data folder, atomic writes, and file locks that name their holder."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import platformdirs

from .errors import DeviceBusyError

HOME_VARIABLE = "SYSBENCH_HOME"


def home() -> Path:
    """The data folder: ``$SYSBENCH_HOME``, else the platform's data directory."""
    override = os.environ.get(HOME_VARIABLE)
    return Path(override).expanduser() if override else platformdirs.user_data_path("sysbench-tui")


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


@contextmanager
def locked(path: Path, *, wait: bool = False, who: str = "") -> Iterator[None]:
    """Hold an advisory lock on ``path``, whose content is this process's id.

    The kernel releases it when the process ends, however it ends.

    Raises:
        DeviceBusyError: Another process holds it and ``wait`` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _written_pid(path)
    except FileNotFoundError:
        pass
    return None


def _written_pid(path: Path) -> int | None:
    text = path.read_bytes().strip()
    return int(text) if text.isdigit() else None
