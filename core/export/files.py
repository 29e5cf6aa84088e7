"""Writes exports atomically; an existing file is replaced only with ``force``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import SpecError


def refuse_existing(paths: list[Path], *, force: bool) -> None:
    """Raise SpecError if one of the targets is there already, unless forced."""
    for path in paths:
        if path.is_dir():
            raise SpecError("output", str(path), "is a folder; name a file")
        if path.exists() and not path.is_file():
            raise SpecError("output", str(path), "is no regular file, and is not replaced")
        if path.exists() and not force:
            raise SpecError("output", str(path), "exists already; --force replaces it")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under ``path`` only when it is complete.

    Raises:
        SpecError: The folder cannot be made or written to.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("wb")
    except OSError as error:
        raise SpecError("output", str(path), f"cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> Path:
    """One complete file."""
    with replacing(path) as file:
        file.write(data)
    return path


def copy(source: IO[bytes], path: Path) -> Path:
    """Copy the rest of an open file to a new path."""
    with replacing(path) as file:
        shutil.copyfileobj(source, file, 1 << 20)
    return path
