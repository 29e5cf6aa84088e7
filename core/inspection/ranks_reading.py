"""Read the ranks of a folder, one decoding process after another.

Only a summary per file stays in memory: 0.7 MB for 20,000 kernels with 2,000 collectives, 160 MiB
at most, and about `MAX_BYTES` for all files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sysbench.core.findings.ranks_rules import doubts_of_files
from sysbench.core.inspection.decoding import Decoding, DecodingCancelled
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.inspection.kinds import path_text
from sysbench.core.inspection.ranks_folder import (
    FolderError,
    RankFiles,
    by_rank,
    rank_files,
)
from sysbench.core.ranks.rank_rows import RankMemoryRow, Ranks
from sysbench.core.record.record import Finding, Memory

if TYPE_CHECKING:
    from sysbench.core.trace.rank_summary import RankTrace

MAX_BYTES = 2**31
"""Limit of all stored summaries; in memory they take about as much."""


class FolderDecoding:
    """Decodes the files of a folder in turn, as ranks of one job."""

    def __init__(self, folder: Path, limit_bytes: int = 0, device: int | None = None) -> None:
        """
        Args:
            folder: Holds a chrome trace, an nsys export or a memory snapshot of each rank.
            limit_bytes: Memory limit per file; 0 as in `Decoding`.
            device: Device of files with several; None for the busiest.
        """
        self.folder = folder
        self._limit_bytes, self._device = limit_bytes, device
        self._current: Decoding | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self, show: Callable[[Path, Progressed], None]) -> Ranks:
        """Wait for the ranks; files that were decoded before are not decoded again.

        Args:
            show: Called with the file being decoded and its progress.

        Raises:
            FolderError: The files are not the ranks of one job.
            ForeignFileError: A file cannot be read.
            DecodingCancelled: `cancel` was called.
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
