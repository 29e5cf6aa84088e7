"""Read a file into tables; meant for a child process with a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import fsum
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.findings.files_rules import findings_of_file
from sysbench.core.findings.snapshot_rules import findings_of_snapshot
from sysbench.core.formatting import percent
from sysbench.core.inspection.bundle_reading import read_bundle
from sysbench.core.inspection.inspection import (
    FROM_EXPORT,
    Inspection,
    format_of,
    path_text,
    program_of,
)
from sysbench.core.machine.peaks import REMEDY, Peak, roof_of
from sysbench.core.memory.foreign import describe_counted, describe_profiled, describe_snapshot
from sysbench.core.memory.profiled import (
    TOO_MANY_BYTES,
    read_counted_allocations,
    read_profiled_allocations,
)
from sysbench.core.memory.snapshot_reading import read_snapshot
from sysbench.core.ranks.rank_rows import Ranks, TimedKind
from sysbench.core.ranks.ranks_block import ranks_block
from sysbench.core.record.record import Finding, Kernels, Memory
from sysbench.core.record.steps import KernelSummary
from sysbench.core.trace.attention_kernels import precision_from_kernel_names
from sysbench.core.trace.captures import join_replays, with_captured
from sysbench.core.trace.collective_kernels import collective_rows, with_purposes
from sysbench.core.trace.columns import BEGIN_CAPTURE
from sysbench.core.trace.cost_rows import add_work, with_costs, work_from_capture, work_from_shapes
from sysbench.core.trace.health import check_health, unread_words
from sysbench.core.trace.host_side import host_side
from sysbench.core.trace.kernel_rows import copy_rows, kernel_rows
from sysbench.core.trace.lanes import encode_lanes, lanes_of
from sysbench.core.trace.nsys_export import export_of, read_contents
from sysbench.core.trace.nsys_projection import summary
from sysbench.core.trace.operators import COUNTED_CATEGORIES
from sysbench.core.trace.rank_summary import RankTrace, rank_trace, rank_traces
from sysbench.core.trace.roofline import with_roof
from sysbench.core.trace.time_ledger import (
    TimeLedger,
    chosen_device,
    device_trace,
    shown_device,
    time_ledger,
)
from sysbench.core.trace.trace_events import Kind, Trace
from sysbench.core.trace.trace_reader import read_trace, trace_origin

MIN_KNOWN_SHARE = 0.95
"""Share of matrix product time with known FLOPs below which a note is added."""
MAX_ROOF_SHARE = 1.02
"""Share of the roof above which a row is noted; clocks and data sheets are rounded."""


def under_file_roof(kernels: Kernels, device: str | None, given: Peak | None = None) -> Kernels:
    """Add each row's share of the roof, or the reason why there is no roof.

    ``device`` is the driver's name of the table's device; ``given`` replaces its peak in the table.
    """
    on_device = kernels.source == "kernels"
    precision = precision_from_kernel_names(kernels)
    if on_device and device and precision is None and given is None:
        reason = (
            f"the names of the kernels do not give the precision, and so not the peak: {REMEDY}"
        )
        return with_roof(kernels, None, reason)
    environment = {"device": {"name": device}}
    kind = "cuda" if on_device else "cpu"
    name = precision.name if precision else ""
    peak_key = precision.peak_key if precision else ""
    return with_roof(kernels, *roof_of(kind, name, peak_key, environment, given))


def with_known_share(kernels: Kernels) -> Kernels:
    """Note missing FLOPs and rows above the roof, if they matter.

    Graph replays have no operators and so no shapes. Rows exceed the roof if the GPU is another
    variant or bytes stayed in a cache.
    """
    reasons = {}
    products = [row for row in kernels.rows if row.category in COUNTED_CATEGORIES]
    whole_ns = fsum(row.exclusive_ns for row in products)
    known_ns = fsum(row.exclusive_ns for row in products if row.flops is not None)
    if kernels.counted_flops is not None and known_ns < MIN_KNOWN_SHARE * whole_ns:
        reasons["flops.share"] = (
            f"FLOPs are known for {percent(known_ns / whole_ns)} of the time of products and "
            "attention: sums leave out the rest"
        )
        if kernels.coverage.graph_kernels and "capture" not in kernels.missing:
            reasons["flops.share"] += " (--capture FILE has those of graph replays)"
    above = [row.of_roof for row in kernels.rows if row.of_roof and row.of_roof > MAX_ROOF_SHARE]
    if above:
        rows = "row reaches more" if len(above) == 1 else "rows reach more"
        reasons["of_roof"] = (
            f"{len(above)} {rows}, up to {percent(max(above), 0)} of the roof: bytes "
            "came from a cache, or the peak is of another GPU (--peak)"
        )
    return msgspec.structs.replace(kernels, missing=kernels.missing | reasons)


def under_peak(inspection: Inspection, given: Peak) -> Inspection:
    """Return the inspection with its kernels against a given roof."""
    if inspection.kernels is None:
        return inspection
    kernels = under_file_roof(inspection.kernels, inspection.device, given)
    return msgspec.structs.replace(inspection, kernels=kernels)


Progress = Callable[[str, int, int], None]
"""Called with stage, amount done and total: ``decode`` in bytes, ``rows`` of an nsys export in
rows, ``analyse`` with 0 of 0."""

NO_REQUESTS = (
    "the trace has no memory requests: torch.profiler records them with profile_memory=True"
)
MAX_RANGES = 20_000
"""NVTX range rows kept of an nsys export. If every call has a distinct name, a second of training
makes 3,000 rows."""


class Tables(NamedTuple):
    """An inspection, its kernels by layer, its input to a comparison of ranks, its encoded
    timeline."""

    inspection: Inspection
    layers: Kernels | None
    rank: RankTrace | None = None
    lanes: bytes | None = None
    run: str = ""
    """Id of the run whose bundle it is."""
    parts: Mapping[str, bytes] = MappingProxyType({})
    """Files of the run's folder, by name."""


def read_tables(
    path: Path,
    progress: Progress,
    device: int | None = None,
    steps: tuple[int, int] | None = None,
    capture: Path | None = None,
) -> Tables:
    """Read all tables of a file, without limits on time or memory.

    Device and marked steps are as in `Decoding`. Raises DamagedFileError with the reason, or
    MemoryError.
    """
    kind = format_of(path)
    if capture and not {kind, format_of(capture)} <= {"chrome-trace", "perfetto-trace"}:
        raise DamagedFileError(
            "--capture joins two traces of torch.profiler: of replays, and of their capture"
        )
    match kind:
        case "chrome-trace" | "perfetto-trace":
            return _read_trace(path, kind, progress, device, steps, capture)
        case "memory-snapshot":
            if steps is not None:
                raise DamagedFileError("a memory snapshot has no steps to choose from")
            return _read_snapshot(path, progress, device)
        case "nsys-export":
            return _read_export(path, progress, device, steps)
        case "bundle":
            if device is not None or steps is not None:
                raise DamagedFileError("a bundle has the tables of the steps that it was made of")
            inspection, run, parts = read_bundle(path)
            return Tables(inspection, None, None, None, run, parts)


def _read_trace(
    path: Path,
    kind: Literal["chrome-trace", "perfetto-trace"],
    progress: Progress,
    device: int | None,
    steps: tuple[int, int] | None,
    capture: Path | None,
) -> Tables:
    """Read kernel times; without a device also the allocations of operators."""
    trace = read_trace(path, lambda done, total: progress("decode", done, total))
    progress("analyse", 0, 0)
    trace, health = check_health(trace)
    origin = trace_origin(path)
    whole = with_purposes(trace, origin.purposes)
    device = chosen_device(whole, device)
    trace = device_trace(whole, shown_device(whole, device))
    ledger = time_ledger(trace, device=device, steps=steps)
    work = work_from_shapes(trace, ledger)
    missing = {}
    if capture:
        joined = join_replays(trace, ledger, _read_capture(capture, progress))
        ledger, missing = with_captured(ledger, joined), {"capture": joined.words}
        work = add_work(work, work_from_capture(joined, ledger))
    name = file_device_name(trace, ledger.device)
    table = with_costs(kernel_rows(ledger), work)
    table = msgspec.structs.replace(table, missing=table.missing | missing)
    folded = with_known_share(under_file_roof(table, name))
    rows = collective_rows(ledger, trace.collectives)
    calls = _runtime_calls(trace, ledger)
    folded = msgspec.structs.replace(
        folded, collectives=rows, copies=copy_rows(ledger), host=host_side(trace, ledger, calls)
    )
    layers = with_costs(kernel_rows(ledger, by_layer=True), work)
    rank = ranks = None
    if steps is None:
        with suppress(DamagedFileError):  # too large to compare; the tables remain valid
            rank = rank_trace(trace, ledger, origin)
            ranks = _ranks_of_file(path, kind, rank_traces(whole, origin))
    lanes = encode_lanes(lanes_of(whole, ledger))
    is_on_cpu = ledger.source == "operators" and trace.has_requests
    memory = _read_cpu_memory(path) if is_on_cpu else None
    if memory:
        inspection = Inspection(
            kind="profiled-allocations",
            file=path_text(path),
            file_bytes=path.stat().st_size,
            kernels=folded,
            memory=memory,
            findings=with_health(health, findings_of_file(folded)),
        )
        return Tables(inspection, layers, rank, lanes)
    if not len(ledger.work):
        raise DamagedFileError(_describe_empty(path, kind, trace))
    counted, why_none = None, NO_REQUESTS
    if trace.has_requests:
        try:
            found = read_counted_allocations(path, ledger.device)
            counted, doubt = describe_counted(*found) if found else (None, None)
            health += [doubt] if doubt else []
        except DamagedFileError as error:  # the kernels remain valid without it
            why_none = str(error)
            health.append(_unread_requests(why_none))
    inspection = Inspection(
        kind=kind,
        file=path_text(path),
        file_bytes=path.stat().st_size,
        device=name,
        kernels=folded,
        memory=counted,
        api_summary=calls,
        findings=with_health(health, findings_of_file(folded, ranks)),
        missing={} if counted else {"memory": why_none},
        ranks=ranks,
    )
    return Tables(inspection, layers, rank, lanes)


def _unread_requests(reason: str) -> Finding:
    why = TOO_MANY_BYTES if TOO_MANY_BYTES in reason else "a value has an unexpected type"
    verdict = f"The kernels were read, the memory requests were not: {why}."
    return Finding("health-memory", "warning", verdict, "", "")


def with_health(health: list[Finding], findings: list[Finding]) -> list[Finding]:
    """Return the findings in the order in which they matter: doubtful events first, notes on
    what does not change a table last."""
    every = [*findings, *health]
    return sorted(every, key=lambda found: not found.is_health)


def _ranks_of_file(path: Path, kind: TimedKind, found: dict[str, RankTrace]) -> Ranks | None:
    """Put the ranks of one file side by side; None if it has fewer than two."""
    if not found:
        return None
    # A device is the rank of its number, as torchrun starts them, unless processes share one.
    numbers = [trace.device for trace in found.values()]
    has_numbers = len(set(numbers)) == len(numbers) and None not in numbers
    places = [number or 0 for number in numbers] if has_numbers else range(len(found))
    files = dict(zip(places, found, strict=True))
    ranks = dict(zip(places, found.values(), strict=True))
    block = ranks_block(path_text(path), files, ranks, one_clock=True)
    return msgspec.structs.replace(block, kind=kind)


def _read_capture(path: Path, progress: Progress) -> Trace:
    """Read the trace of a capture; DamagedFileError if it contains none."""
    trace = read_trace(path, lambda done, total: progress("decode", done, total))
    if not any(map(BEGIN_CAPTURE.search, trace.names)):
        raise DamagedFileError(f"{path} has no capture of a graph: it has no call that starts one")
    return trace


def _runtime_calls(trace: Trace, ledger: TimeLedger) -> list[KernelSummary]:
    """Summarise runtime and driver calls, of the selected steps if any."""
    host = trace.host
    is_call = host.kind == Kind.RUNTIME
    if ledger.host_window is not None:
        is_call &= (host.start >= ledger.host_window.low) & (host.start < ledger.host_window.high)
    calls = host.take(is_call)
    return summary(trace.names, calls.name, calls)


def _describe_empty(path: Path, kind: TimedKind, trace: Trace) -> str:
    if kind == "perfetto-trace":
        return f"{path} is a Perfetto trace without any kernel or operator of torch.profiler"
    program = program_of(path)
    whose = f"of {program}, whose events are not read" if program else ""
    if trace.unread:
        whose = f"{whose} ({unread_words(trace.unread)})".strip()
        return f"{path} is a chrome trace {whose}: its device's work is not read"
    return f"{path} is a chrome trace {whose or 'without any kernel or operator'}"


def file_device_name(trace: Trace, device: int | None) -> str | None:
    """Return the device's name in the file, if known.

    AMD's traces number devices differently in events and properties; if all names agree, the number
    does not matter.
    """
    if device is None:
        return None
    names = {name for name in trace.devices.values() if name}
    only = next(iter(names)) if len(names) == 1 else None
    return trace.devices.get(device) or only


def _read_cpu_memory(path: Path) -> Memory | None:
    """Read requests to the CPU allocator; None if there are none."""
    history = read_profiled_allocations(path)
    return describe_profiled(history) if len(history) else None


def _read_snapshot(path: Path, progress: Progress, device: int | None) -> Tables:
    snapshot = read_snapshot(path, lambda done, total: progress("decode", done, total))
    progress("analyse", 0, 0)
    memory = describe_snapshot(snapshot, device)
    missing = {"kernels": "a memory snapshot has no times of kernels"}
    if snapshot.is_empty:
        missing["memory"] = "the snapshot is empty"
    inspection = Inspection(
        kind="memory-snapshot",
        file=path_text(path),
        file_bytes=path.stat().st_size,
        memory=None if snapshot.is_empty else memory,
        findings=findings_of_snapshot(snapshot, memory),
        missing=missing,
    )
    return Tables(inspection, None)


def _read_export(
    path: Path, progress: Progress, device: int | None, steps: tuple[int, int] | None
) -> Tables:
    contents = read_contents(path, lambda done, total: progress("rows", done, total))
    progress("analyse", 0, 0)
    trace, health = check_health(contents.events.trace)
    export = export_of(contents, device, steps, trace)
    ranks = _ranks_of_file(path, "nsys-export", export.ranks)
    tables = {name: getattr(export.nvtx, name) for name in ("rows", "elsewhere", "folded")}
    missing = export.missing
    if (row_count := max(map(len, tables.values()))) > MAX_RANGES:
        missing = missing | {"nvtx.rows": f"the first {MAX_RANGES:,} of {row_count:,}"}
        first = {name: rows[:MAX_RANGES] for name, rows in tables.items()}
        export = msgspec.structs.replace(export, nvtx=msgspec.structs.replace(export.nvtx, **first))
    inspection = Inspection(
        kind="nsys-export",
        file=path_text(path),
        file_bytes=path.stat().st_size,
        kernels=export.folded,
        export_schema=export.schema,
        findings=with_health(health, findings_of_file(export.folded, ranks)),
        missing=missing | {"memory": "nsys does not record the allocator"},
        ranks=ranks,
        **{name: getattr(export, name) for name in FROM_EXPORT},
    )
    return Tables(inspection, export.kernels, export.rank, export.lanes)
