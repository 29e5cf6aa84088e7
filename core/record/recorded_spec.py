"""Check the spec inside a record, which later versions keep unchanged as a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.core.errors import DamagedFileError

if TYPE_CHECKING:
    from sysbench.core.record.record import Record

_SPEC_HAS = {
    **dict.fromkeys(("batch", "context"), int),
    **dict.fromkeys(("model", "precision", "attention", "step", "optimizer", "compile"), str),
    "device": str,
}
"""Required keys of a spec of any version, with their types."""
OWN_MODEL = "own-model"
"""Workload of users' models, which may have none of these sizes."""
_SIZES = {"batch", "context", "d_model", "layers", "heads"}


def check_spec(record: Record, source: Path) -> None:
    """Raise DamagedFileError if a record's spec lacks required keys or types."""
    for key, kind in _SPEC_HAS.items():
        if not isinstance(record.spec.get(key), kind):
            raise DamagedFileError(
                f"{source} is not a run's record: spec.{key} is not of type {kind.__name__}"
            )
    least = 0 if record.spec.get("workload") == OWN_MODEL else 1
    for key in _SIZES & record.spec.keys():
        if not isinstance(record.spec[key], int) or not least <= record.spec[key] < 2**31:
            raise DamagedFileError(f"{source} is not a run's record: spec.{key} is not a size")
    for key, value in record.spec.items():
        if not isinstance(value, int | float | str):
            raise DamagedFileError(f"{source} is not a run's record: spec.{key} is not a value")
