"""Find runs in the library to compare a run with: its eager counterpart, its other steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from sysbench.core.compare.compared_records import NOTHING_KNOWN
from sysbench.core.compare.comparison import BreakEven, break_even
from sysbench.core.errors import SysbenchError
from sysbench.core.experiments.noise import known_noise
from sysbench.core.record.environment import device_name, node
from sysbench.core.record.record import Record
from sysbench.core.runs.library import SPEC_COLUMNS, Entry, Library
from sysbench.core.runs.run_directory import load_record
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.fields import COMPILE_KEYS, keys_deciding
from sysbench.core.spec.own_model import JOB
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.questions import GEMM_STEPS


def eager_spec(record: Record) -> RunSpec:
    """Return the record's spec without torch.compile; SpecError if it is another version's."""
    settings = {key: value for key, value in record.spec.items() if key not in COMPILE_KEYS}
    return RunSpec(**settings)


def eager_counterpart(record: Record) -> Record | None:
    """Return the newest valid run of the same spec, device and torch without torch.compile.

    None if there is none that can be read.
    """
    runs = Library()
    wanted = eager_spec(record).identity
    entries = (
        entry
        for entry in runs.entries(str(record.spec["model"]))
        if entry.identity == wanted and entry.rounds and not entry.live
    )
    others = (other for other in _readable(entries, runs) if _machine(other) == _machine(record))
    return next(others, None)


def _readable(entries: Iterable[Entry], runs: Library) -> Iterator[Record]:
    for entry in entries:
        with suppress(SysbenchError):
            yield load_record(runs.open(entry.id))


def compile_break_even(record: Record) -> BreakEven | None:
    """Return the steps after which compiling pays off; None for a run that is not compiled.

    The verdict uses the rounds of both runs, or the known spread of their specs.
    """
    if record.compile is None:
        return None
    try:
        command = command_line(eager_spec(record), ["timing"])
        how = f"no eager run of this spec here: {command}"
        eager = eager_counterpart(record)
        known = known_noise(eager, record) if eager else NOTHING_KNOWN
        return break_even(record, eager, how, known)
    except SysbenchError as error:
        return break_even(record, None, str(error))


def _machine(record: Record) -> tuple[object, ...]:
    torch = record.environment.get("torch") or {}
    return device_name(record.environment), torch.get("version"), node(record.environment)


FREE = keys_deciding("step", "procedure", "conditions")
"""Keys of a spec that may differ: they do not change what a kernel of forward computes."""


def runs_with_other_steps(record: Record, library: Library | None = None) -> list[Record]:
    """Return the newest traced run of each other kind of step, the specs otherwise alike.

    Unreadable runs are skipped. An imported trace and a watched command have none.
    """
    if not record.spec or record.spec.get("workload") == JOB:
        return []
    runs = library or Library()
    by_step: dict[str, Record] = {}
    alike = {key: record.spec[key] for key in SPEC_COLUMNS if key not in FREE}
    entries = (
        entry
        for entry in runs.entries(str(record.spec["model"]))
        if entry.step in GEMM_STEPS
        and entry.step not in (record.spec["step"], *by_step)
        and "trace" in entry.passes
        and not entry.live
        and all(getattr(entry, key) == value for key, value in alike.items())
    )
    for other in _readable(entries, runs):
        if other.kernels is not None and _deciding(other) == _deciding(record):
            by_step[other.spec["step"]] = other
    return list(by_step.values())


def _deciding(record: Record) -> dict[str, object]:
    """Return the rest of the spec; keys newer than the record have their defaults."""
    spec = msgspec.to_builtins(RunSpec()) | record.spec
    return {key: value for key, value in spec.items() if key not in FREE}
