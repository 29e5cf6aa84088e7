"""Write a bundle: one zip file of a run or an imported file, with redacted texts."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.export.exports import write
from sysbench.core.export.redaction import Redaction
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.bundle_reading import (
    HEADER,
    INSPECTION,
    LANES,
    LAYERS,
    MANIFEST,
    MAX_PART_BYTES,
    NAME,
    RECORD,
    TRACE,
    Manifest,
)
from sysbench.core.inspection.entries import InspectionEntry
from sysbench.core.inspection.inspection import Inspection, encode_inspection
from sysbench.core.machine.read_environment import PROGRAM, package_version
from sysbench.core.record.record import Kernels, encode_record
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.storage import UNREADABLE_JSON, open_regular, read_regular
from sysbench.core.tables.cells import literal_json
from sysbench.core.trace.trace_json import unpacked

MAX_TRACE_BYTES = 2**28
"""Largest unpacked trace to trim: its texts take several times that in memory."""
MAX_DEPTH = 64
STEP = "ProfilerStep#"
STAMP = (1980, 1, 1, 0, 0, 0)
PICKLE_REASON = "a pickle can run code when it is loaded, and its stacks have paths"


def write_bundle(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    """Raises SpecError for a run that is live."""
    record = load_record(run)
    if record.status == "running":
        raise SpecError("run", run.id, "is live; a bundle is of a run that ended")
    parts = {
        HEADER: msgspec.json.encode(run.header()),
        RECORD: encode_record(record),
        **_stored(run),
    }
    left_out = {"events and logs": "their texts are free"}
    if run.snapshot_path.is_file():
        left_out["memory snapshot"] = PICKLE_REASON
    return [
        write(path, _archive(run.id, parts, run.trace_path, run.path, record.kernels, left_out))
    ]


def inspection_as_bundle(entry: InspectionEntry, inspection: Inspection) -> bytes:
    """Return the bundle of an imported file; its trace is included if it is a chrome trace."""
    parts = {INSPECTION: encode_inspection(inspection), **_stored(entry.as_run)}
    file = Path(inspection.file)
    is_trace = inspection.kind in ("chrome-trace", "profiled-allocations")
    left_out = {} if is_trace else {"the file itself": f"{inspection.kind}: it is not redacted"}
    trace = file if is_trace else entry.path / TRACE
    return _archive(file.name, parts, trace, None, inspection.kernels, left_out)


def _stored(run: RunDirectory) -> dict[str, bytes]:
    found = {}
    for name in (LAYERS, LANES):
        if (run.path / name).is_file():
            found[name] = read_regular(run.path / name, MAX_PART_BYTES[name], inside=run.path)
    return found


def _archive(
    name: str,
    parts: Mapping[str, bytes],
    trace: Path,
    inside: Path | None,
    kernels: Kernels | None,
    left_out: dict[str, str],
) -> bytes:
    documents = {
        part: (msgspec.json if part.endswith(".json") else msgspec.msgpack).decode(data)
        for part, data in parts.items()
    }
    if trace.is_file():
        read = _read_trace(trace, inside)
        if isinstance(read, str):
            left_out = left_out | {"trace": read}
        else:
            documents[TRACE] = trimmed(read, kernels)
    redaction = Redaction()
    redaction.learn([name, *documents.values()])
    packed = {part: _encoded(part, redaction.document(documents[part])) for part in documents}
    of = redaction.text(name)
    manifest = Manifest(
        version=package_version(PROGRAM) or "unknown",
        of=of if NAME.fullmatch(of) else "file",
        redacted=dict(sorted(redaction.counts.items())),
        left_out={key: redaction.text(why) for key, why in left_out.items()},
        parts=[*packed],
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            zipfile.ZipInfo(MANIFEST, STAMP), _encoded(MANIFEST, manifest), zipfile.ZIP_STORED
        )
        for part, data in packed.items():
            archive.writestr(zipfile.ZipInfo(part, STAMP), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _encoded(part: str, document: Any) -> bytes:
    if part == LANES:
        return msgspec.msgpack.encode(document)
    data = msgspec.json.encode(document)
    return gzip.compress(data, 6, mtime=0) if part == TRACE else literal_json(data, indent=0)


def _read_trace(path: Path, inside: Path | None) -> Any:
    """Return the decoded trace, or the reason why it is left out."""
    with open_regular(path, inside) as file:
        try:
            data = unpacked(cast(io.BufferedReader, file)).read(MAX_TRACE_BYTES + 1)
            if len(data) > MAX_TRACE_BYTES:
                return f"it has more than {format_bytes(MAX_TRACE_BYTES)} unpacked"
            trace = msgspec.json.decode(data)
            return trace if _nests_within(trace, MAX_DEPTH) else "it is nested too deep"
        except (EOFError, zlib.error, gzip.BadGzipFile, *UNREADABLE_JSON) as error:
            return f"it cannot be redacted: {error}"


def _nests_within(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_nests_within(one, levels - 1) for one in inner)


def trimmed(trace: Any, kernels: Kernels | None) -> Any:
    """Return the trace with the events of the steps that the tables use; all without chosen steps.

    Events without a time, which name processes and threads, are kept.
    """
    marked = kernels.marked_steps if kernels else None
    if marked is None or marked.chosen is None or not isinstance(trace, dict):
        return trace
    first, last = marked.chosen
    events = trace.get("traceEvents", [])
    spans = [span for event in events if (span := _step_span(event, first, last))]
    if not spans:
        return trace
    low, high = min(begin for begin, _ in spans), max(end for _, end in spans)
    return trace | {"traceEvents": [event for event in events if _overlaps(event, low, high)]}


def _step_span(event: Any, first: int, last: int) -> tuple[float, float] | None:
    name = event.get("name", "") if isinstance(event, dict) else ""
    number = name[len(STEP) :] if isinstance(name, str) and name.startswith(STEP) else ""
    if not number.isdecimal() or not first <= int(number) <= last:
        return None
    return next(_times(event), None)


def _overlaps(event: Any, low: float, high: float) -> bool:
    return all(begin < high and end >= low for begin, end in _times(event))


def _times(event: Any) -> Iterator[tuple[float, float]]:
    """Begin and end of an event in microseconds; nothing if it has no number there."""
    if not isinstance(event, dict) or event.get("ph") == "M":
        return
    try:
        begin = float(event["ts"])
        yield begin, begin + float(event.get("dur", 0))
    except (KeyError, TypeError, ValueError):
        return
