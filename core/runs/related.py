"""The eager run that a compiled one is held against, from the library."""

from __future__ import annotations

from ..analysis.compare import BreakEven, break_even
from ..errors import SysbenchError
from ..machine.environment import device_name
from ..record.record import Record
from ..spec.spec import RunSpec
from .builder import settled_record
from .launch import command_line
from .library import Library

COMPILE_KEYS = tuple(name for name in RunSpec.__struct_fields__ if name.startswith("compile"))


def eager_spec(record: Record) -> RunSpec:
    """The record's spec without torch.compile, all else as it was.

    Raises:
        SpecError: The spec is of a version that allowed other values.
    """
    kept = {key: value for key, value in record.spec.items() if key not in COMPILE_KEYS}
    return RunSpec(**kept)


def eager_twin(record: Record, library: Library | None = None) -> Record | None:
    """The newest finished run of the same spec without torch.compile, on the same device and
    torch; None if there is none that can be read."""
    runs = library or Library()
    wanted = eager_spec(record).identity
    entries = runs.entries(str(record.spec["model"]))
    for entry in sorted(entries, key=lambda entry: -entry.created_ns):
        if entry.identity != wanted or entry.median_ms is None or entry.live:
            continue
        try:
            other = settled_record(runs.open(entry.id))
        except SysbenchError:
            continue
        if _machine(other) == _machine(record):
            return other
    return None


def worth_of(record: Record, library: Library | None = None) -> BreakEven | None:
    """After how many steps compiling pays here; None for a run that is not compiled."""
    if record.compile is None:
        return None
    try:
        command = command_line(eager_spec(record), ["timing"])
        how = f"no eager run of this spec here: {command}"
        return break_even(record, eager_twin(record, library), how)
    except SysbenchError as error:
        return break_even(record, None, str(error))


def _machine(record: Record) -> tuple[object, ...]:
    torch = record.environment.get("torch") or {}
    return device_name(record.environment), torch.get("version")
