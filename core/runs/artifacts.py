"""Artifacts of a run: kernels layer by layer, generated code, logs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.record.record import Kernels, Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import UNREADABLE_JSON, read_json
from sysbench.core.trace.provenance import kernel_source
from sysbench.core.trace.roofline import with_roof

FILE = "kernels.json"


def layer_rows(run: RunDirectory, record: Record) -> Kernels | None:
    """Return the kernels of a run with one row per layer, or those of the record if the file is
    gone.

    None if the record has no kernels. DamagedFileError if the file is not the table of the trace
    pass.
    """
    if record.kernels is None:
        return None
    path = run.pass_folder("trace") / FILE
    try:
        detailed = msgspec.json.decode(read_json(path, inside=run.path), type=Kernels)
    except FileNotFoundError:
        return record.kernels
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is not a table of kernels: {error}") from error
    if not _adds_up(detailed, record.kernels):
        raise DamagedFileError(
            f"{path} does not add up to the record's kernels: one of them was changed; without the "
            "file the record's are shown"
        )
    detailed = with_roof(detailed, record.kernels.roof, record.kernels.missing.get("roof", ""))
    return msgspec.structs.replace(detailed, perturbation=record.kernels.perturbation)


def _adds_up(detailed: Kernels, folded: Kernels) -> bool:
    """Return whether the layers' rows have the calls and the time of the record's, by name.

    Only the record has a digest.
    """
    sums = []
    for table in (detailed, folded):
        of_name: dict[str, list[float]] = {}
        for row in table.rows:
            figures = of_name.setdefault(row.name, [0.0, 0.0, 0.0])
            for index, figure in enumerate((row.calls, row.total_ns, row.exclusive_ns)):
                figures[index] += figure
        sums.append(of_name)
    layers, whole = sums
    return layers.keys() == whole.keys() and all(
        math.isclose(layer_sum, whole_sum, rel_tol=1e-9, abs_tol=1e-6)
        for name in layers
        for layer_sum, whole_sum in zip(layers[name], whole[name], strict=True)
    )


def logs_of(run: RunDirectory, record: Record) -> Iterator[tuple[str, Path]]:
    """Yield the log of each pass that ran, by name: ``timing``, ``timing, round 2``, ``trace`` …"""
    for row in record.passes:
        yield row.name, run.log_path(row.name)
        logs = run.pass_folder(row.name).glob("log.*.txt")
        numbers = (match for path in logs if (match := _ROUND_LOG.fullmatch(path.name)))
        for number in sorted(int(match[1]) for match in numbers):
            yield f"{row.name}, round {number}", run.log_path(row.name, number)


_ROUND_LOG = re.compile(r"log\.([1-9][0-9]{0,8})\.txt")
MAX_BYTES = 32 * 2**20


def generated_code(run: RunDirectory, file: str, name: str) -> str:
    """Return the definition of one kernel; the whole file if the kernel is not defined in it.

    ``file`` is the path of the code in the trace pass's folder. NotFoundError if it is absent, or
    far too large.
    """
    folder = run.pass_folder("trace").resolve()
    path = (folder / file).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise NotFoundError(f"run {run.id} has no generated code {file}")
    if path.stat().st_size > MAX_BYTES:
        raise NotFoundError(f"{path} is too large to show")
    code = path.read_text(encoding="utf-8", errors="replace")
    return kernel_source(code, name) or code
