"""The trace pass's rows layer by layer, from the run's directory: the record folds them."""

from __future__ import annotations

import msgspec

from ..analysis.costs.roofline import with_roof
from ..errors import DamagedFileError
from ..record.record import Kernels, Record
from .directory import RunDirectory

FILE = "kernels.json"


def layer_rows(run: RunDirectory, record: Record) -> Kernels | None:
    """The kernels of a run with one row a layer; the record's own where the file is gone.

    None when the record has no kernels.

    Raises:
        DamagedFileError: The file is there and is not what the trace pass wrote.
    """
    if record.kernels is None:
        return None
    path = run.pass_folder("trace") / FILE
    try:
        detailed = msgspec.json.decode(path.read_bytes(), type=Kernels)
    except FileNotFoundError:
        return record.kernels
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{path} is not a table of kernels: {error}") from error
    detailed = with_roof(detailed, record.kernels.roof, record.kernels.missing.get("roof", ""))
    return msgspec.structs.replace(detailed, perturbation=record.kernels.perturbation)
