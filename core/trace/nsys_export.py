"""Tables from an nsys SQLite export, like those of a trace."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import counted
from sysbench.core.record.record import Kernels, Nsys
from sysbench.core.record.steps import NsysFacts
from sysbench.core.trace.collective_kernels import collective_rows
from sysbench.core.trace.columns import KERNEL_LAUNCH
from sysbench.core.trace.host_side import host_side
from sysbench.core.trace.kernel_rows import copy_rows, kernel_rows
from sysbench.core.trace.lanes import encode_lanes, lanes_of
from sysbench.core.trace.nsys_events import (
    ExportFile,
    NsysEvents,
    Progress,
    open_export,
    read_nsys_events,
)
from sysbench.core.trace.nsys_projection import (
    clocks_of,
    devices_of,
    nvtx_of,
    summary,
)
from sysbench.core.trace.rank_summary import RankTrace, rank_trace, rank_traces
from sysbench.core.trace.time_ledger import (
    chosen_device,
    device_trace,
    shown_device,
    time_ledger,
)
from sysbench.core.trace.trace_events import Kind, Trace, names_fit
from sysbench.core.trace.trace_json import TraceOrigin

KNOWN_SCHEMA = "3."
GPU_TABLE, MESSAGES = "TARGET_INFO_GPU", "DIAGNOSTIC_EVENT"
WARNING, ERROR = 2, 3
"""``severity`` of a message."""
ON_CUDA = re.compile(r"CUDA|CUPTI|GPU|NVIDIA|driver")
MAX_MESSAGES, MAX_MESSAGE_LENGTH = 2, 200


class NsysExport(NsysFacts, frozen=True, kw_only=True):
    """Tables of one export: ``kernels`` has a row per layer, ``folded`` has layers folded; ``rank``
    is None without collectives, ``ranks`` are those of several devices or processes, ``lanes`` is
    the encoded timeline."""

    kernels: Kernels
    folded: Kernels
    lanes: bytes
    ranks: dict[str, RankTrace]
    rank: RankTrace | None = None

    def block(self) -> Nsys:
        facts = {name: getattr(self, name) for name in NsysFacts.__struct_fields__}
        return Nsys(kernels=self.folded, **facts)


class ExportContents(NamedTuple):
    """An export before analysis: events, GPU models by id, versions, and what nsys warned of in
    the recording of CUDA, errors first."""

    events: NsysEvents
    models: dict[int, str]
    versions: dict[str, str]
    warnings: list[str]


def read_export(path: Path) -> NsysExport:
    """Read and analyze an export; an empty one has empty tables, with reasons in ``missing``."""
    return export_of(read_contents(path))


def read_contents(path: Path, progress: Progress | None = None) -> ExportContents:
    """Read an export; ``progress`` gets the event rows read so far and their total.

    Raises NotFoundError, or DamagedFileError for a file that is no export, damaged, or hostile.
    """
    with open_export(path, progress) as file:
        events, versions = read_nsys_events(file), file.facts("META_DATA_EXPORT")
        return ExportContents(events, _models(file), versions, _warnings(file))


def export_of(
    contents: ExportContents,
    device: int | None = None,
    steps: tuple[int, int] | None = None,
    repaired: Trace | None = None,
) -> NsysExport:
    """Build the tables of a device (default: the busiest) and of marked steps (default: all).

    ``repaired`` is the trace without impossible events. DamagedFileError if nothing ran there.
    """
    events, models, versions, warnings = contents
    schema = versions.get("EXPORT_SCHEMA_VERSION")
    missing = _missing(events, schema, warnings)
    whole = repaired or events.trace
    device = chosen_device(whole, device)
    trace = device_trace(whole, shown_device(whole, device))
    ledger = time_ledger(trace, device=device, steps=steps)
    devices = devices_of(events, models)
    rank, ranks = None, {}
    if steps is None:
        with suppress(DamagedFileError):  # too much to compare, the export's tables do without
            rank = rank_trace(trace, ledger, TraceOrigin())
            ranks = rank_traces(whole, TraceOrigin())
    is_kernel = events.work.kind == Kind.KERNEL
    kernels, others = events.work.take(is_kernel), events.work.take(~is_kernel)
    return NsysExport(
        kernels=_without_unknowns(kernel_rows(ledger, by_layer=True), missing),
        folded=msgspec.structs.replace(
            _without_unknowns(kernel_rows(ledger), missing),
            collectives=collective_rows(ledger, trace.collectives),
            copies=copy_rows(ledger),
            host=host_side(trace, ledger, []),
        ),
        lanes=encode_lanes(lanes_of(whole, ledger)),
        rank=rank,
        ranks=ranks,
        kernel_summary=summary(events.names, kernels.short, kernels),
        memory_summary=summary(events.names, others.short, others),
        api_summary=summary(events.names, events.calls.name, events.calls),
        nvtx=nvtx_of(events),
        clocks=clocks_of(events, devices),
        devices=devices,
        schema=schema,
        nsys_version=versions.get("EXPORT_PRODUCT_VERSION"),
        missing=missing,
    )


def _without_unknowns(kernels: Kernels, missing: dict[str, str]) -> Kernels:
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


def _missing(events: NsysEvents, schema: str | None, warnings: list[str]) -> dict[str, str]:
    missing = {}
    kernels = events.work.kind == Kind.KERNEL
    if not kernels.any():
        said = " and ".join(f'"{text[:MAX_MESSAGE_LENGTH]}"' for text in warnings[:MAX_MESSAGES])
        reasons = [f"nsys warned {said}"] if said else []
        if len(events.calls) or not said:
            reasons.append(_no_kernels(events))
        missing["kernels"] = f"the export has no kernels: {'; '.join(reasons)}"
    if len(events.graphs):
        missing["graphs"] = (
            f"{len(events.graphs):,} launches of CUDA graphs were traced as one block each, "
            "without the kernels inside: profile with --cuda-graph-trace=node"
        )
    if not len(events.ranges):
        missing["nvtx"] = (
            "the export has no NVTX ranges: none were open, or NVTX was not traced "
            "(--trace=cuda,nvtx), or nsys does not support the program's nvtx package"
        )
    elif not len(events.calls):
        missing["nvtx"] = "CUDA calls were not recorded: no range can be projected onto the GPU"
    if schema is None:
        missing["schema"] = "the export has no schema version"
    elif not schema.startswith(KNOWN_SCHEMA):
        missing["schema"] = f"the export has schema {schema}; supported is {KNOWN_SCHEMA}x"
    return missing


def _no_kernels(events: NsysEvents) -> str:
    calls = len(events.calls)
    launches = int(names_fit(events.names, events.calls.name, KERNEL_LAUNCH.search).sum())
    if launches:
        return f"it has {counted(launches, 'launch call')}, and their kernels were not recorded"
    if calls:
        return f"it has {counted(calls, 'CUDA call')}, none of which launched a kernel"
    return "nothing ran on a GPU while nsys recorded, or CUDA was not traced (--trace=cuda,nvtx)"


def _warnings(file: ExportFile) -> list[str]:
    severities = file.integers(MESSAGES, (), ("severity",))["severity"].tolist()
    messages = zip(severities, file.texts(MESSAGES, "text"), strict=True)
    warned = {
        text: -severity
        for severity, text in messages
        if severity in (WARNING, ERROR) and text and ON_CUDA.search(text)
    }
    return sorted(warned, key=warned.__getitem__)


def _models(file: ExportFile) -> dict[int, str]:
    ids = file.integers(GPU_TABLE, (), ("id",))["id"].tolist()
    return {key: name for key, name in zip(ids, file.texts(GPU_TABLE, "name"), strict=True) if name}
