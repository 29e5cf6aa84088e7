"""Artifacts of a run: kernels layer by layer, code that a compiler generated, logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..analysis.costs.roofline import with_roof
from ..analysis.kernels.provenance import kernel_source
from ..errors import DamagedFileError, NotFoundError
from ..record.record import Kernels, Record
from ..storage import UNREADABLE_JSON, read_regular
from .directory import RunDirectory

FILE = "kernels.json"


def layer_rows(run: RunDirectory, record: Record) -> Kernels | None:
    """The kernels of a run with one row a layer; those of the record where the file is gone.

    None when the record has no kernels.

    Raises:
        DamagedFileError: The file exists and is not a table of the trace pass.
    """
    if record.kernels is None:
        return None
    path = run.pass_folder("trace") / FILE
    try:
        detailed = msgspec.json.decode(read_regular(path), type=Kernels)
    except FileNotFoundError:
        return record.kernels
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is not a table of kernels: {error}") from error
    detailed = with_roof(detailed, record.kernels.roof, record.kernels.missing.get("roof", ""))
    return msgspec.structs.replace(detailed, perturbation=record.kernels.perturbation)


def logs_of(run: RunDirectory, record: Record) -> Iterator[tuple[str, Path]]:
    """The log of each pass that ran, by name: ``timing``, ``timing, round 2``, ``trace`` …"""
    for row in record.passes:
        yield row.name, run.log_path(row.name)
        later = (int(path.suffixes[0][1:]) for path in run.pass_folder(row.name).glob("log.*.txt"))
        for number in sorted(later):
            yield f"{row.name}, round {number}", run.log_path(row.name, number)


LARGEST_BYTES = 32 * 2**20


def generated_code(run: RunDirectory, file: str, name: str) -> str:
    """The definition of one kernel; the whole file where the kernel is not defined in it.

    Args:
        file: Path of the code relative to the trace pass's folder, as in the record.
        name: The kernel's.

    Raises:
        NotFoundError: There is no such file in the run, or it is far too large.
    """
    folder = run.pass_folder("trace").resolve()
    path = (folder / file).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise NotFoundError(f"run {run.id} has no generated code {file}")
    if path.stat().st_size > LARGEST_BYTES:
        raise NotFoundError(f"{path} is too large to show")
    code = path.read_text(encoding="utf-8", errors="replace")
    return kernel_source(code, name) or code
