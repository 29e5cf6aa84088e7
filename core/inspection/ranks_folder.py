"""Find the files of a folder by format and rank, and read its ranks one after another."""

from __future__ import annotations

import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sysbench.core.errors import ForeignFileError
from sysbench.core.findings.ranks_rules import doubts_of_files
from sysbench.core.formatting import counted
from sysbench.core.inspection.decoding import (
    Decoding,
    DecodingCancelled,
    default_limit_bytes,
    follow_decoder,
    start_decoder,
)
from sysbench.core.inspection.inspection import (
    RECORDINGS,
    Finished,
    Format,
    Progressed,
    Refused,
    format_of,
    is_other_json,
    path_text,
)
from sysbench.core.ranks.rank_rows import RankMemoryRow, Ranks, TimedKind
from sysbench.core.record.record import Finding, Memory

RANK_IN_NAME = (
    re.compile(r"rank[-_.= ]?(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![a-z0-9])(?:tp|dp|r|gpu)[-_]?(\d{1,6})(?![a-z0-9])", re.IGNORECASE),
    re.compile(r"[._-](\d{1,4})\.sqlite$"),
)
"""Rank in names of torchrun scripts, of TensorBoard's handler with a worker name, of SGLang, and of
nsys with a variable in ``-o``: ``report.3.sqlite``."""
PACKED = (".json.gz", ".pickle.gz", ".pftrace.gz")
MAX_FILES = 128
"""Limit, because each file is decoded by its own process in turn."""


class FolderError(ForeignFileError):
    """A folder that does not contain the ranks of one job."""


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Readable files of a folder in order of their names, and the names of the others; ``traces``
    are traces of torch.profiler or nsys exports, as ``kind`` says."""

    folder: Path
    traces: list[Path]
    kind: TimedKind
    snapshots: list[Path]
    left_out: list[str]


def rank_files(folder: Path) -> RankFiles:
    """Find the files of a folder by format, without hidden files and subfolders.

    Raises FolderError: fewer than two files of a kind, too many, or incompatible kinds.
    """
    if any((around / "run.json").is_file() for around in (folder, folder.absolute().parent)):
        format_of(folder)  # raises, with the command that shows the run
    found: defaultdict[Format, list[Path]] = defaultdict(list)
    left_out = []
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise FolderError(f"{folder} cannot be read: {error.strerror}") from error
    for path in files:
        if path.name.startswith("."):
            continue
        try:
            found_format = format_of(path)
        except ForeignFileError:
            if path.name.endswith(PACKED):
                raise  # probably a truncated rank, without which the others would mislead
            left_out.append(path.name)
            continue
        is_settings = found_format == "chrome-trace" and is_other_json(path)
        if is_settings or found_format == "bundle":
            left_out.append(path.name)
        else:
            found[found_format].append(path)
    traces = sorted([*found["chrome-trace"], *found["perfetto-trace"]])
    snapshots = found["memory-snapshot"]
    exports = found["nsys-export"]
    if exports and traces:
        form = "chrome" if traces[0] in found["chrome-trace"] else "Perfetto"
        raise FolderError(
            f"{folder} mixes nsys exports ({exports[0].name}) with {form} traces "
            f"({traces[0].name}): all files of a folder must be of one kind"
        )
    traces = traces or exports
    if not traces and not snapshots:
        raise FolderError(f"{folder} is a folder without {RECORDINGS}")
    if max(len(traces), len(snapshots)) < 2:
        only = (traces or snapshots)[0]
        raise FolderError(f"{folder} has one rank only: inspect {only} itself")
    if len(traces) + len(snapshots) > MAX_FILES:
        count = counted(len(traces) + len(snapshots), "file")
        raise FolderError(f"{folder} has {count} to read: at most {MAX_FILES} are compared")
    kind: TimedKind = "perfetto-trace" if found["perfetto-trace"] else "chrome-trace"
    return RankFiles(folder, traces, "nsys-export" if exports else kind, snapshots, left_out)


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file's name: ``rank0``, ``trace_8_rank_1``, ``1719-TP-3``, ``r2``."""
    for pattern in RANK_IN_NAME:
        numbers = {int(number) for number in pattern.findall(path.name)}
        if len(numbers) == 1:
            return numbers.pop()
    return None


def by_rank(files: Iterable[tuple[Path, int | None]]) -> dict[int, Path]:
    """Sort files of one format by rank, each with the rank in its content, else by its name.

    Raises FolderError: a file has no rank, or two files have the same.
    """
    found: dict[int, Path] = {}
    for path, rank_in_file in files:
        rank = rank_in_name(path) if rank_in_file is None else rank_in_file
        if rank is None:
            raise FolderError(
                f"{path} contains no rank (no distributedInfo), and neither does its name: "
                "name the files rank0…, rank1…"
            )
        if rank in found:
            raise FolderError(
                f"rank {rank} has two files, {found[rank].name} and {path.name}: keep one of them "
                "in the folder"
            )
        found[rank] = path
    return dict(sorted(found.items()))


def merge_traces(
    folder: Path,
    ranks: Ranks,
    output: Path,
    show: Callable[[Progressed], None],
    limit_bytes: int = 0,
) -> None:
    """Merge the traces of all ranks into one chrome trace, with aligned clocks, gzipped if it ends
    so.

    A child with a memory limit reads one event at a time, or one Perfetto trace. A rank with an
    unknown clock is not shifted. Raises FolderError or ForeignFileError.
    """
    if ranks.kind not in ("chrome-trace", "perfetto-trace"):
        raise FolderError(f"{folder} has no traces to merge")
    if output.absolute().parent.resolve() == folder.resolve():
        raise FolderError(
            f"{output} is in the folder itself, where it would count as a rank: choose "
            "another folder"
        )
    paths = {path_text(path.name): path for path in folder.iterdir()}
    devices = [row.device for row in ranks.rows]
    is_shared = len(set(devices)) < len(devices)
    files = [
        text
        for row in ranks.rows
        for text in (
            *(str(paths[row.file]), str(row.rank), str(row.clock_ahead_ns or 0)),
            str(row.device) if is_shared and row.device is not None else "",
        )
    ]
    limit = str(limit_bytes or default_limit_bytes())
    arguments = (str(output.absolute()), limit, *files)
    process = start_decoder(
        "sysbench.core.inspection.merging_process", *arguments, log=subprocess.DEVNULL
    )
    end, code = follow_decoder(process, show)
    match end:
        case Refused(message=message):
            raise ForeignFileError(message)
        case None:
            raise ForeignFileError(f"{output}: its writing ended with exit code {code}")
        case Finished():
            return


if TYPE_CHECKING:
    from sysbench.core.trace.rank_summary import RankTrace

MAX_BYTES = 2**31
"""Limit of all stored summaries; in memory they take about as much."""


class FolderDecoding:
    """Decodes the files of a folder in turn, as ranks of one job."""

    def __init__(self, folder: Path, limit_bytes: int = 0, device: int | None = None) -> None:
        """Decode files of at most ``limit_bytes``, 0 as in `Decoding`; of ``device`` where a file
        has several."""
        self.folder = folder
        self._limit_bytes, self._device = limit_bytes, device
        self._current: Decoding | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self, show: Callable[[Path, Progressed], None]) -> Ranks:
        """Wait for the ranks; files that were decoded before are not decoded again.

        ``show`` gets the file being decoded and its progress. Raises FolderError if the files are
        not the ranks of one job, and as `Decoding.run`.
        """
        from sysbench.core.trace.rank_summary import MAX_CALLS, MAX_INTERVALS  # lazy: numpy

        folder, files = self.folder, rank_files(self.folder)
        summaries: dict[Path, RankTrace] = {}
        memories: dict[Path, RankMemoryRow] = {}
        findings: dict[str, list[Finding]] = {}
        held_bytes = 0
        for path in (*files.traces, *files.snapshots):
            decoding = self._begin(path)
            inspection = decoding.run(partial(show, path))
            findings[path_text(path.name)] = inspection.findings
            summary = decoding.entry.read_rank()
            if summary is not None:
                summaries[path] = summary
                held_bytes += decoding.entry.rank_path.stat().st_size
                if held_bytes > MAX_BYTES:
                    raise FolderError(f"{folder} has more ranks of that size than can be compared")
            elif path in files.traces:
                raise FolderError(
                    f"{path} has no collective by which ranks are compared, or more than "
                    f"{MAX_CALLS:,} of them or {MAX_INTERVALS:,} pieces of work"
                )
            if inspection.memory is not None:
                memories[path] = _memory_row(path, inspection.memory)
        block = _side_by_side(files, summaries, memories)
        doubts = doubts_of_files(findings)
        return msgspec.structs.replace(block, findings=[*doubts, *block.findings])

    def cancel(self) -> None:
        """End the decoding; `run` then raises. May be called from another thread."""
        with self._lock:
            self._cancelled = True
            if self._current is not None:
                self._current.cancel()

    def _begin(self, path: Path) -> Decoding:
        with self._lock:
            if self._cancelled:
                raise DecodingCancelled(f"{self.folder}: cancelled")
            self._current = Decoding(path, self._limit_bytes, self._device)
            return self._current


def _side_by_side(
    files: RankFiles,
    summaries: Mapping[Path, RankTrace],
    memories: Mapping[Path, RankMemoryRow],
) -> Ranks:
    """Combine the ranks of decoded files; FolderError if they are not those of one job."""
    from sysbench.core.ranks.ranks_block import ranks_block  # lazy: numpy

    folder = files.folder
    traces = by_rank((path, summaries[path].rank) for path in files.traces)
    snapshots = by_rank((path, None) for path in files.snapshots)
    sizes = {summary.world_size for summary in summaries.values()} - {None}
    if len(sizes) > 1:
        sizes_text = " and ".join(str(size) for size in sorted(sizes, key=str))
        raise FolderError(
            f"{folder} mixes jobs of {sizes_text} ranks; put each job into its own folder"
        )
    if len({summary.source for summary in summaries.values()}) > 1:
        without = next(p for p, summary in summaries.items() if summary.source == "operators")
        raise FolderError(f"{without} has no work of a device, and other ranks have")
    world_size = sizes.pop() if sizes else None
    ranks = {rank: summaries[path] for rank, path in traces.items()}
    block = (
        ranks_block(
            path_text(folder),
            {rank: path_text(path.name) for rank, path in traces.items()},
            ranks,
        )
        if ranks
        else Ranks(folder=path_text(folder), missing={"rows": "memory snapshots have no times"})
    )
    states = [rank for rank, path in snapshots.items() if memories[path].peak_bytes is None]
    if states:
        names = ", ".join(map(str, sorted(states)))
        block.missing["peak_bytes"] = (
            f"snapshots of ranks {names} have no history: their peak is unknown, and the other "
            "columns are the state when they were taken"
        )
    known = ranks or snapshots
    held = snapshots or {rank: path for rank, path in traces.items() if path in memories}
    return msgspec.structs.replace(
        block,
        kind=files.kind if ranks else None,
        world_size=world_size,
        absent=[rank for rank in range(world_size or 0) if rank not in known],
        left_out=[path_text(name) for name in files.left_out],
        memory=[msgspec.structs.replace(memories[path], rank=rank) for rank, path in held.items()],
    )


def _memory_row(path: Path, memory: Memory) -> RankMemoryRow:
    """Return the row of a file whose rank is not known yet."""
    named = [origin for origin in memory.origins if origin.stack]
    top = max(named, key=lambda origin: origin.bytes, default=None)
    return RankMemoryRow(
        rank=0,
        file=path_text(path.name),
        peak_bytes=None if memory.is_state else memory.peak_allocated_bytes,
        reserved_bytes=memory.peak_reserved_bytes,
        end_bytes=memory.end_allocated_bytes,
        baseline_bytes=memory.baseline_bytes,
        largest_bytes=top.bytes if top else None,
        largest=top.stack[0] if top else None,
        device=memory.device,
    )
