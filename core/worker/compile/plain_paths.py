"""Paths that torch's C++ compiler command accepts.

Inductor writes the compiler's command as one line and splits it as a shell would, but quotes
neither its cache folder nor the folders of libraries: with a blank, a quote or a backslash in one
of them every compilation fails. Symbolic links give such folders a second path.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path

from sysbench.core.errors import SysbenchError, WorkerFailed
from sysbench.core.runs.worker_process import Job, Report

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
PYTHON_FOLDERS = ("LIBDIR", "installed_base")
"""Variables of `sysconfig` from which Inductor takes Python's libraries and headers."""
PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def use_plain_paths() -> None:
    """Give this process plain paths to Inductor's cache, to torch and to Python.

    Call it before torch is imported.

    Raises:
        WorkerFailed: No folder can hold the links.
    """
    cache = os.environ.get(CACHE_VARIABLE, "")
    if not is_plain(cache):
        Path(cache).mkdir(parents=True, exist_ok=True)  # a dangling link is no folder
        os.environ[CACHE_VARIABLE] = str(plain(Path(cache).absolute()))
    for index, entry in enumerate(sys.path):
        if not is_plain(entry) and Path(entry, "torch", "__init__.py").is_file():
            sys.path[index] = str(plain(Path(entry).absolute()))
    variables = sysconfig.get_config_vars()
    for name in PYTHON_FOLDERS:
        if variables.get(name) and not is_plain(str(variables[name])):
            variables[name] = str(plain(Path(variables[name])))
    # The default place of the cache. Last, because links are made in it while it is plain.
    if not is_plain(folder := tempfile.gettempdir()):
        os.environ["TMPDIR"] = tempfile.tempdir = str(plain(Path(folder)))


def have_plain_paths(job: Job, report: Report) -> bool:
    """Call `use_plain_paths` if the job compiles; report a failure and return False."""
    if not job.spec.compiles:
        return True
    try:
        use_plain_paths()
    except (SysbenchError, OSError) as error:
        from sysbench.core.worker.failures import report_failure  # lazy: imports torch

        report_failure(error, job.spec, report)
        return False
    return True


def is_plain(path: str) -> bool:
    """Whether a shell reads the path as one word without quoting."""
    try:
        return not path or shlex.split(path) == [path]
    except ValueError:  # a quote that nothing closes
        return False


def plain(path: Path) -> Path:
    """Return a plain path to the same folder, which need not exist yet.

    Raises:
        WorkerFailed: No folder can hold the link.
    """
    awkward = next((one for one in (path, *path.parents) if not is_plain(one.name)), None)
    if awkward is None:
        return path
    # The same for every process, because compiled code is cached by the command that made it.
    name = hashlib.sha256(os.fsencode(awkward)).hexdigest()[:16]
    link = _folder_of_links(path) / name
    # A second process finds the same link: its name is made from its target.
    with suppress(FileExistsError):
        link.symlink_to(awkward)
    return link / path.relative_to(awkward)


def _folder_of_links(path: Path) -> Path:
    """A folder with a plain path that no other user can write to."""
    for place in dict.fromkeys((tempfile.gettempdir(), *PLACES)):
        folder = Path(place, f"sysbench-tui-{os.getuid()}")
        if not is_plain(str(folder)):
            continue
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            found = folder.lstat()
        except OSError:
            continue
        # Another user can make a folder of this name first, with links to elsewhere.
        if stat.S_ISDIR(found.st_mode) and (found.st_uid, found.st_mode & 0o077) == (
            os.getuid(),
            0,
        ):
            return folder
    raise WorkerFailed(
        f"torch cannot compile in {str(path)!r}: it takes no path with blanks, quotes or "
        f"backslashes, and none of {', '.join(PLACES)} can hold a link to it; move it, or set "
        "TMPDIR to a plain path that can be written to"
    )
