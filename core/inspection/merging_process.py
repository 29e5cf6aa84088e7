"""Merge the traces of ranks into one file.

``python -m sysbench.core.inspection.merging_process OUT LIMIT {FILE RANK AHEAD DEVICE}…``

LIMIT is the memory limit in bytes, AHEAD the clock offset of a file in nanoseconds, DEVICE a device
that gets the number of the rank, or empty. Events keep their content otherwise; processes, arrows
and launches are renumbered, and processes are named by rank. Messages go to standard output.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from io import BufferedIOBase
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.decoding import run_decoder
from sysbench.core.inspection.inspection import Finished, ProgressSender
from sysbench.core.trace.trace_json import Text, read_events, unpacked
from sysbench.core.trace.trace_reader import is_perfetto_file, read_perfetto_dicts, trace_origin

PIDS_OF_RANK = 2**16
"""Process numbers reserved per rank; a file with more processes is hostile."""
IDS_OF_RANK = 2**40
"""Perfetto reads ids as doubles, which are exact up to 4,096 ranks of 2**40 ids."""
LAUNCHES_OF_RANK = 2**32
EVENTS_AT_ONCE = 1000


class RankSource(NamedTuple):
    """One rank's file, its clock offset, and the device to number by the rank."""

    path: Path
    rank: int
    ahead_ns: int
    device: int | None


def main(output: str, limit_bytes: str, *files: str) -> int:
    """Write the merged file atomically; return the exit code."""
    sources = [
        RankSource(Path(path), int(rank), int(ahead), int(device) if device else None)
        for path, rank, ahead, device in zip(*(files[at::4] for at in range(4)), strict=True)
    ]
    target = Path(output)
    return run_decoder(target, int(limit_bytes), lambda: _merge(sources, target))


def _merge(sources: list[RankSource], target: Path) -> Finished:
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            if target.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6) as packed:
                    _write(packed, sources, ProgressSender())
            else:
                _write(file, sources, ProgressSender())
        unfinished.replace(target)
        return Finished()
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def _write(file: BufferedIOBase, sources: list[RankSource], progress: ProgressSender) -> None:
    origins = [trace_origin(source.path) for source in sources]
    base_ns = origins[0].clock_base_ns
    encoder = msgspec.json.Encoder(decimal_format="number")
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    file.write(encoder.encode(head)[:-1] + b',"traceEvents":[\n')
    separator = b""
    for source, origin in zip(sources, origins, strict=True):
        shift = Decimal(origin.clock_base_ns - base_ns - source.ahead_ns) / 1000
        change = _Change(source.rank, shift, source.device)
        pending: list[bytes] = []
        for event in _events(source.path, progress):
            pending.append(encoder.encode(change.changed(event)))
            if len(pending) == EVENTS_AT_ONCE:
                file.write(separator + b",\n".join(pending))
                pending, separator = [], b",\n"
        pending += map(encoder.encode, change.names())
        if pending:
            file.write(separator + b",\n".join(pending))
            separator = b",\n"
    file.write(b"\n]}\n")


class _Change:
    """Shifts one rank's events and renumbers its processes and ids."""

    def __init__(self, rank: int, shift: Decimal, device: int | None) -> None:
        self._rank = rank
        self._shift = shift
        self._device = device
        self._pids: dict[object, int] = {}
        self._numbers = count((rank + 1) * PIDS_OF_RANK)
        self._named: set[int] = set()

    def changed(self, event: dict[str, Any]) -> dict[str, Any]:
        if isinstance(event.get("ts"), int | Decimal):
            event["ts"] = self._shift + event["ts"]
        pid = event["pid"] = self._pid(event.get("pid"))
        for key in ("id", "bind_id"):
            if key in event:
                event[key] = self._id(event[key])
        if not isinstance(args := event.get("args"), dict):
            return event
        # A merged file has one device and one launch of a number, as each file does.
        if type(launch := args.get("correlation")) is int and 0 < launch < LAUNCHES_OF_RANK:
            args["correlation"] = self._rank * LAUNCHES_OF_RANK + launch
        if self._device is not None and args.get("device") == self._device:
            args["device"] = self._rank
        if event.get("ph") == "M":
            if event.get("name") == "process_name":
                args["name"] = f"rank {self._rank}: {args.get('name')}"
                self._named.add(pid)
            elif event.get("name") == "process_sort_index":
                args["sort_index"] = pid
        return event

    def names(self) -> Iterator[dict[str, Any]]:
        """Name the processes that the file does not name."""
        for pid, number in self._pids.items():
            if number not in self._named:
                args = {"name": f"rank {self._rank}: {pid}"}
                yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": args}

    def _pid(self, pid: object) -> int:
        key = pid if isinstance(pid, str | int) else str(pid)
        if key not in self._pids:
            if len(self._pids) == PIDS_OF_RANK:
                raise DamagedFileError(f"more than {PIDS_OF_RANK:,} processes")
            self._pids[key] = next(self._numbers)
        return self._pids[key]

    def _id(self, value: object) -> object:
        if isinstance(value, int) and 0 <= value < IDS_OF_RANK:
            return self._rank * IDS_OF_RANK + value
        return f"rank {self._rank}: {value}"


def _events(path: Path, progress: ProgressSender) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace; those of a chrome trace unchanged.

    Raises DamagedFileError if it is none.
    """
    if is_perfetto_file(path):
        yield from read_perfetto_dicts(path, lambda done, of: progress.send("decode", done, of))
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        text = Text(unpacked(file), dict[str, Any], Decimal)
        try:
            for events in read_events(text):
                yield from events
                progress.send("merge", file.tell(), size)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedFileError(f"{path} is not a valid chrome trace: {error}") from error


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
