"""Writes exports atomically; an existing file is replaced only with ``force``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.formatting import format_bytes


def refuse_existing(paths: list[Path], *, force: bool) -> None:
    """Raise SpecError if one of the targets is there already, unless forced."""
    for path in paths:
        if path.is_dir():
            raise SpecError("output", str(path), "is a folder; name a file")
        if path.exists() and not path.is_file():
            raise SpecError("output", str(path), "is no regular file, and is not replaced")
        if os.path.lexists(path) and not force:  # a link that leads nowhere is there too
            raise SpecError("output", str(path), "exists already; --force replaces it")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under ``path`` only when it is complete.

    A link in its place is replaced, and what it leads to stays.

    Raises:
        SpecError: The folder cannot be made, as where the one around it is missing, or written to.
    """
    # A name that nobody can foresee, and no file or link that is there: the folder may be shared.
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        # One folder at most: a path with a mistake in it is no tree to make.
        path.parent.mkdir(exist_ok=True)
        file = part.open("xb")
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


def copy(source: IO[bytes], path: Path, most_bytes: int | None = None) -> Path:
    """Copy the rest of an open file to a new path.

    Raises:
        DamagedFileError: There are more than ``most_bytes`` of it; nothing is left of them.
    """
    copied = 0
    with replacing(path) as file:
        while piece := source.read(1 << 20):
            copied += len(piece)
            if most_bytes is not None and copied > most_bytes:
                raise DamagedFileError(f"it has more than {format_bytes(most_bytes)}")
            file.write(piece)
    return path
