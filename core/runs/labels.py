"""Names and notes that people give to runs: ``label.json`` beside the record, no part of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.storage import UNREADABLE_JSON, read_json, write_atomically

FILE = "label.json"
LONGEST_NAME = 40
LONGEST_NOTE = 500


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What a person calls a run, and what they noted of it; empty where there is nothing.

    Texts are of anybody who could write the file: whoever shows them escapes them.
    """

    name: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)] = ""
    note: Annotated[str, msgspec.Meta(max_length=LONGEST_NOTE)] = ""


UNLABELLED = Label()


def label_of(run: Path) -> Label:
    """The label of the run in that folder.

    Raises:
        DamagedFileError: There is a file of it that cannot be read.
    """
    path = run / FILE
    try:
        return msgspec.json.decode(read_json(path, inside=run), type=Label)
    except (FileNotFoundError, NotADirectoryError):
        return UNLABELLED
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is no label: {error}") from error


def label_known(run: Path) -> Label:
    """`label_of`, without one where it cannot be read: a run is listed and shown all the same."""
    try:
        return label_of(run)
    except DamagedFileError:
        return UNLABELLED


def write_label(run: Path, label: Label) -> None:
    """Replace the label of the run in that folder; an empty one leaves no file.

    Raises:
        SpecError: A text is too long, or has a character that cannot be printed.
        OSError: It could not be written.
    """
    for key, text, longest in (
        ("name", label.name, LONGEST_NAME),
        ("note", label.note, LONGEST_NOTE),
    ):
        if len(text) > longest or not text.isprintable():
            raise SpecError(key, text, f"a line of at most {longest} printable characters")
    path = run / FILE
    if label == UNLABELLED:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, msgspec.json.encode(label))


def label_version(run: str | os.PathLike[str]) -> str:
    """Changes with the label of the run in that folder; empty without one."""
    try:
        file = os.stat(f"{os.fspath(run)}/{FILE}")
    except OSError:
        return ""
    return f":{file.st_mtime_ns}:{file.st_ino}"
