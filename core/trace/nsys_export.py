"""Tables from an nsys SQLite export, like those of a trace."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.nsys import NsysFacts
from sysbench.core.record.record import Kernels, Nsys
from sysbench.core.trace.collective_kernels import collective_rows
from sysbench.core.trace.host_side import host_side
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.nsys_events import NsysEvents, join_nsys_events, read_nsys_events
from sysbench.core.trace.nsys_file import ExportFile, Progress, open_export
from sysbench.core.trace.nsys_projection import (
    OPERATOR_FACTS,
    call_summary,
    clocks_of,
    devices_of,
    nvtx_of,
    work_summary,
)
from sysbench.core.trace.origin import TraceOrigin
from sysbench.core.trace.rank_summary import RankTrace, rank_trace
from sysbench.core.trace.time_ledger import chosen_device, time_ledger
from sysbench.core.trace.trace_events import NONE, DeviceEvents, HostEvents, Kind, Trace

OPERATOR = re.compile(r"[a-z_][a-z0-9_]*::\w")
"""Lower-case namespace: aten::mm, c10d::allreduce_; FSDP::forward is a range."""


def trace_of(events: NsysEvents) -> Trace:
    """Convert ranges and calls to host events; kernels, graphs, copies and fills to device events.

    Ranges of torch's emit_nvtx around operators become operators, with the sequence number that
    links a backward node to the operator that created it.
    """
    ranges, calls = events.ranges, events.calls
    work = join_nsys_events([events.work, events.graphs])
    names = _Names(events)
    return Trace(
        names=list(names.numbers),
        base_ns=events.base_ns,
        host=HostEvents(
            kind=np.r_[names.kind[ranges.name], calls.kind],
            name=names.number[np.r_[ranges.name, calls.name]],
            thread=np.r_[ranges.thread, calls.thread],
            start=np.r_[ranges.start, calls.start],
            end=np.r_[ranges.end, calls.end],
            # A launch of 0 is valid here, but 0 means none in a trace; -1 becomes 0.
            correlation=np.r_[np.full(len(ranges), NONE), calls.launch + 1],
            sequence=np.r_[names.sequence[ranges.name], np.full(len(calls), NONE)],
            operands=np.full(len(ranges) + len(calls), NONE),
        ),
        device=DeviceEvents(
            kind=work.kind,
            name=names.number[work.name],
            device=work.device,
            start=work.start,
            end=work.end,
            correlation=work.launch + 1,
            collective=np.full(len(work), NONE),
        ),
    )


class _Names:
    """Names of the trace; operator names are without `OPERATOR_FACTS`.

    Attributes:
        numbers: Number of each name of the trace.
        number: Number of each name of the export in the trace.
        kind, sequence: Range kind and sequence number of each name of the export.
    """

    def __init__(self, events: NsysEvents) -> None:
        size = len(events.names)
        self.numbers: dict[str, int] = {}
        self.number = np.full(size, NONE)
        self.kind = np.full(size, int(Kind.ANNOTATION))
        self.sequence = np.full(size, NONE)
        for index in np.unique(events.ranges.name).tolist():
            self._add_range(index, events.names[index])
        others = (events.calls.name, events.work.name, events.graphs.name)
        for index in np.unique(np.concatenate(others)).tolist():
            self._add(index, events.names[index])

    def _add(self, index: int, name: str) -> None:
        self.number[index] = self.numbers.setdefault(name, len(self.numbers))

    def _add_range(self, index: int, text: str) -> None:
        name, facts = text, OPERATOR_FACTS.search(text)
        if facts:
            name = text[: facts.start()]
            if facts[1] == "seq" and facts[2]:
                self.sequence[index] = int(facts[2])
        self._add(index, name)
        if OPERATOR.match(name):
            self.kind[index] = Kind.OPERATOR


KNOWN_SCHEMA = "3."
GPU_TABLE = "TARGET_INFO_GPU"


class NsysExport(NsysFacts, frozen=True, kw_only=True):
    """Tables of one export: ``kernels`` has a row per layer, ``folded`` has layers folded; ``rank``
    is None without collectives."""

    kernels: Kernels
    folded: Kernels
    rank: RankTrace | None = None

    def block(self) -> Nsys:
        facts = {name: getattr(self, name) for name in NsysFacts.__struct_fields__}
        return Nsys(kernels=self.folded, **facts)


class ExportContents(NamedTuple):
    """An export before analysis: events, GPU models by id, versions."""

    events: NsysEvents
    models: dict[int, str]
    versions: dict[str, str]


def read_export(path: Path) -> NsysExport:
    """Read and analyze an export; an empty one has empty tables, with reasons in ``missing``.

    Raises:
        NotFoundError: The file does not exist or is not readable.
        DamagedFileError: The file is no nsys export, damaged, or hostile.
    """
    return export_of(read_contents(path))


def read_contents(path: Path, progress: Progress | None = None) -> ExportContents:
    """Read the contents of an export.

    Args:
        progress: Called with the number of event rows read so far and their total.

    Raises:
        NotFoundError: The file does not exist or is not readable.
        DamagedFileError: The file is no nsys export, damaged, or hostile.
    """
    with open_export(path, progress) as file:
        return ExportContents(read_nsys_events(file), _models(file), file.facts("META_DATA_EXPORT"))


def export_of(
    contents: ExportContents, device: int | None = None, steps: tuple[int, int] | None = None
) -> NsysExport:
    """Build the tables from the contents of an export.

    Args:
        device: Device of the kernel tables; None for the busiest.
        steps: First and last marked step to include; None for all.

    Raises:
        DamagedFileError: Nothing ran on that device, or in these steps.
    """
    events, models, versions = contents
    schema = versions.get("EXPORT_SCHEMA_VERSION")
    missing = _missing(events, schema)
    trace = trace_of(events)
    ledger = time_ledger(trace, device=chosen_device(trace, device), steps=steps)
    devices = devices_of(events, models)
    rank = None
    if steps is None:
        with suppress(DamagedFileError):  # too much to compare, yet the export's tables stand
            rank = rank_trace(trace, ledger, TraceOrigin())
    is_kernel = events.work.kind == Kind.KERNEL
    return NsysExport(
        kernels=_without_unknowns(kernel_rows(ledger, by_layer=True), missing),
        folded=msgspec.structs.replace(
            _without_unknowns(kernel_rows(ledger), missing),
            collectives=collective_rows(ledger, trace.collectives),
            host=host_side(trace, ledger, []),
        ),
        rank=rank,
        kernel_summary=work_summary(events.names, events.work.take(is_kernel)),
        memory_summary=work_summary(events.names, events.work.take(~is_kernel)),
        api_summary=call_summary(events.names, events.calls),
        nvtx=nvtx_of(events),
        clocks=clocks_of(events, devices),
        devices=devices,
        schema=schema,
        nsys_version=versions.get("EXPORT_PRODUCT_VERSION"),
        missing=missing,
    )


def _without_unknowns(kernels: Kernels, missing: dict[str, str]) -> Kernels:
    """Explain gaps of the table; without device work and operators, drop idle time."""
    kernels = msgspec.structs.replace(
        kernels, missing=kernels.missing | {"flops": "nsys records no shapes of operators"}
    )
    if kernels.rows or kernels.source == "kernels":
        return kernels
    return msgspec.structs.replace(
        kernels,
        idle=[],
        unattributed_ns=kernels.step_ms * 1e6,
        coverage=msgspec.structs.replace(kernels.coverage, explained=0.0),
        missing=kernels.missing | {"rows": missing["kernels"]},
    )


def _missing(events: NsysEvents, schema: str | None) -> dict[str, str]:
    missing = {}
    kernels = events.work.kind == Kind.KERNEL
    if not kernels.any():
        missing["kernels"] = (
            "the export has no kernels: nothing ran on a GPU while nsys recorded, or CUDA was "
            "not traced (--trace=cuda,nvtx)"
        )
    if len(events.graphs):
        missing["graphs"] = (
            f"{len(events.graphs):,} launches of CUDA graphs were traced as one block each, "
            "without the kernels inside: profile with --cuda-graph-trace=node"
        )
    if not len(events.ranges):
        missing["nvtx"] = (
            "the export has no NVTX ranges: none were open, or NVTX was not traced "
            "(--trace=cuda,nvtx), or this nsys does not hear the program's nvtx package"
        )
    elif not len(events.calls):
        missing["nvtx"] = "CUDA calls were not recorded: no range can be projected onto the GPU"
    if schema is None:
        missing["schema"] = "the export does not say its version"
    elif not schema.startswith(KNOWN_SCHEMA):
        missing["schema"] = f"the export has layout {schema}; known is {KNOWN_SCHEMA}x"
    return missing


def _models(file: ExportFile) -> dict[int, str]:
    ids = file.integers(GPU_TABLE, (), ("id",))["id"].tolist()
    return {key: name for key, name in zip(ids, file.texts(GPU_TABLE, "name"), strict=True) if name}
