"""The sides of a comparison: runs of the library, or files of any program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ....core.analysis.difference.difference import Side
from ....core.errors import NotFoundError
from ....core.inspection.decoding import Decoding
from ....core.runs.artifacts import layer_rows
from ....core.runs.directory import find_run
from ....core.runs.records import load_record
from .inspection import decoding_progress


@dataclass(frozen=True, slots=True)
class ReadSide(Side):
    """A side as it was named on the command line."""

    is_file: bool = False


def read_side(text: str) -> ReadSide:
    """The run of that name, or the file at that path, which a separate process decodes.

    The record of a file has an empty spec, and the path as it was given for its id.

    Raises:
        NotFoundError: Neither a run nor a file.
        ForeignFileError: The file cannot be read.
    """
    path = Path(text)
    if path.is_file():
        decoding = Decoding(path)
        with decoding_progress() as show:
            inspection = decoding.run(show)
        record = msgspec.structs.replace(inspection.as_record(), id=text)
        return ReadSide(record, layer_rows(decoding.entry.as_run, record), is_file=True)
    try:
        run = find_run(text)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; nor is there a file of that name") from None
    record = load_record(run)
    return ReadSide(record, layer_rows(run, record))
