"""Data folder and its parts, atomic writes, ends of logs, file locks that name their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import IO

import msgspec

from sysbench.core.errors import DamagedFileError, DeviceBusyError, SpecError
from sysbench.core.formatting import format_bytes

HOME_VARIABLE = "SYSBENCH_HOME"
MAX_BYTES = 2**28
"""Largest file of a run that is read at once; records have up to a few MiB."""
UNREADABLE_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Failures of decoding JSON: RecursionError if it nests too deeply."""


def home() -> Path:
    """Return the data folder: ``$SYSBENCH_HOME``, else the platform's data directory."""
    if override := os.environ.get(HOME_VARIABLE):
        return Path(override).expanduser()
    import platformdirs  # lazy: a worker, whose Python may lack it, never gets here

    return platformdirs.user_data_path("sysbench-tui")


def make_folder(path: Path, *, exist_ok: bool = True) -> None:
    """Make a folder in the data folder, and the data folder itself, readable by the owner only.

    Runs contain names of processes and settings, and a lock that others can open, they can hold. An
    existing data folder keeps its permissions: it may be shared on purpose.

    Raises:
        FileExistsError: It exists already, unless ``exist_ok``.
        OSError: The data folder cannot be created; NotADirectoryError if a parent is a file.
    """
    data_folder = home()
    if path.is_relative_to(data_folder) and not data_folder.is_dir():
        try:
            data_folder.parent.mkdir(parents=True, exist_ok=True)
            data_folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            # For an existing folder, callers draw another name.
            number = errno.ENOTDIR if error.errno == errno.EEXIST else error.errno or errno.EIO
            raise OSError(
                number,
                f"cannot create the data folder ({os.strerror(number)}); set {HOME_VARIABLE} to "
                "another",
                str(data_folder),
            ) from error
    path.mkdir(parents=True, exist_ok=exist_ok)


def has_folder(path: Path) -> bool:
    """Return whether a folder of the data folder exists.

    Raises:
        SpecError: The data folder is not a folder.
    """
    if path.is_dir():
        return True
    if os.path.lexists(path.parent) and not path.parent.is_dir():
        raise SpecError(HOME_VARIABLE, str(path.parent), "is not a folder; name one")
    return False


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that readers see the old or the new content; after OSError the old."""
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


def open_regular(path: Path, inside: Path | None = None) -> IO[bytes]:
    """Open a regular file for reading. Refuse a pipe or a device, which might block forever.

    Args:
        inside: Folder out of which no link may lead: a link in an untrusted run may point to any
            file of the reader, whose content would be shown and published as the run's.

    Raises:
        DamagedFileError: Not a regular file, or outside that folder.
        OSError: It cannot be opened.
    """
    try:
        descriptor = _open_inside(path, inside) if inside else os.open(path, _READ)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise DamagedFileError(f"{path} is not a regular file: {error.strerror}") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DamagedFileError(f"{path} is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _open_inside(path: Path, inside: Path) -> int:
    """Open a file and follow no link out of the folder, also none that appears during this call."""
    # Unlike Path.resolve, realpath accepts links that point to themselves.
    root, resolved = os.path.realpath(inside), os.path.realpath(path)
    if not Path(resolved).is_relative_to(root):
        raise DamagedFileError(f"{path} is a link that points out of {inside}, and is not followed")
    *folders, name = Path(resolved).relative_to(root).parts or (".",)
    parent = os.open(root, _FOLDER)
    try:
        for folder in folders:
            descriptor = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = descriptor
        return os.open(name, _READ | os.O_NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


# Without O_NONBLOCK, opening a pipe waits for its writer.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NO_FILE = (errno.ENXIO, errno.ELOOP)
"""Errors of opening a socket, and a link that points to itself."""


def read_regular(path: Path, most_bytes: int = MAX_BYTES, *, inside: Path | None = None) -> bytes:
    """Read a regular file.

    Raises:
        DamagedFileError: Not a regular file, larger than ``most_bytes``, or outside ``inside``.
        OSError: It cannot be read.
    """
    with open_regular(path, inside) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise DamagedFileError(
                f"{path} has {format_bytes(size)}; more than {format_bytes(most_bytes)} is not read"
            )
        # Python allocates as many bytes as it is asked to read.
        return file.read(min(most_bytes, size + 2**16))


def text_of(path: Path) -> str:
    """Return the text of a small file of the system; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def open_to_write(path: Path, flags: int) -> int:
    """Open or create a file that is written in place, and return its descriptor.

    Links are refused: anyone who can create one in a shared folder, or in a run that they pass on,
    would choose which of the writer's files is changed.

    Args:
        flags: Further flags of `os.open`.

    Raises:
        DamagedFileError: It is a link.
        OSError: It cannot be opened.
    """
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedFileError(f"{path} is a link; nothing is written through one") from error
        raise


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file to read and to append to; arguments and errors as in `open_to_write`."""
    return os.fdopen(open_to_write(path, os.O_RDWR | os.O_APPEND), "a+b")


def read_json(path: Path, *, inside: Path | None = None) -> bytes:
    """Read a JSON file that can be decoded in bounded memory.

    Raises:
        DamagedFileError: As in `read_regular`, or it would take more than `MAX_DECODED_BYTES`.
    """
    data = read_regular(path, inside=inside)
    check_decoded(data, path)
    return data


def check_decoded(data: bytes, source: object) -> None:
    """Check the memory that JSON takes once decoded: three bytes can become an object of 64.

    Raises:
        DamagedFileError: More than `MAX_DECODED_BYTES`.
    """
    if len(data) * max(_BYTES_OF.values()) <= MAX_DECODED_BYTES:
        return  # small whatever it contains
    count = decoded_bytes(data)
    if count > MAX_DECODED_BYTES:
        raise DamagedFileError(
            f"{source} would take {format_bytes(count)} of memory; "
            f"more than {format_bytes(MAX_DECODED_BYTES)} is not decoded"
        )


def decoded_bytes(data: bytes) -> int:
    """Estimate the bytes of decoded JSON within a factor of two, from a count of punctuation."""
    return sum(data.count(mark) * size for mark, size in _BYTES_OF.items())


MAX_DECODED_BYTES = 2**30
"""Limit for JSON of a run. Records of a million steps in 20 rounds take less."""
_BYTES_OF = {b",": 32, b"[": 64, b"{": 240, b":": 120}
"""Bytes of a value, list, object and key in CPython, by the character that marks each."""


@contextmanager
def locked(path: Path, *, wait: bool = False, who: str = "") -> Iterator[None]:
    """Hold an advisory lock on ``path``, whose content is this process's id.

    The kernel releases it when the process ends, even if it is killed.

    Raises:
        DeviceBusyError: Another process holds it and ``wait`` is false.
        DamagedFileError: ``path`` is a link.
    """
    make_folder(path.parent)
    with open_to_append(path) as file:
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
    """Return the id of the process that holds the lock.

    None if it is free or if this user may not read it.
    """
    try:
        with open_regular(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _written_pid(path)
    except (FileNotFoundError, PermissionError, DamagedFileError):
        pass  # not a file, so nobody holds it
    return None


def has_open(pid: int, path: Path) -> bool:
    """Return whether that process has the file open; true if the system does not report it.

    A lock held in another container or on another machine contains a process id from there, which
    belongs to an unrelated process here.
    """
    descriptors = Path("/proc", str(pid), "fd")
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        wanted = path.stat()
        return any(_is(descriptor, wanted) for descriptor in descriptors.iterdir())
    except OSError:  # it ended, or belongs to another user
        return False


def _is(descriptor: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), wanted)
    except OSError:  # closed after it was listed
        return False


def _written_pid(path: Path) -> int | None:
    text = path.read_bytes().strip()
    return int(text) if text.isdigit() else None


LOG_TAIL_LINES = 60


def last_lines(path: Path, count: int = LOG_TAIL_LINES, *, inside: Path | None = None) -> list[str]:
    """Return the last lines of a log, undecodable bytes replaced; empty if it cannot be read."""
    try:
        text = last_bytes(path, 65536, inside=inside).decode("utf-8", "replace")
    except (OSError, DamagedFileError):
        return []
    return text.splitlines()[-count:]


def last_bytes(path: Path, most_bytes: int, *, inside: Path | None = None) -> bytes:
    with open_regular(path, inside) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def experiments_folder(root: Path | None = None) -> Path:
    return (root or home()) / "experiments"


def experiment_folders(root: Path | None = None) -> list[Path]:
    folder = experiments_folder(root)
    if not has_folder(folder):
        return []
    return sorted((path.parent for path in folder.glob("*/experiment.json")), reverse=True)


def baselines_folder(root: Path | None = None) -> Path:
    return (root or home()) / "baselines"


def studies_folder(root: Path | None = None) -> Path:
    """Return the folder of the studies' directories and of the user's files."""
    return (root or home()) / "studies"


def study_files() -> dict[str, Path]:
    """Return study files by name; the user's take precedence over the shipped."""
    shipped = Path(str(resources.files("sysbench.profiles") / "studies"))
    folders = (shipped, studies_folder())
    return {
        path.stem: path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.glob("*.toml"))
    }


def begun_studies(root: Path | None = None) -> list[Path]:
    """Return the folders of started studies, newest first."""
    folder = studies_folder(root)
    paths = folder.glob("*/study.json") if has_folder(folder) else ()
    newest = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [path.parent for path in newest]
