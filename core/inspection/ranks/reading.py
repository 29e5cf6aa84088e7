"""From a folder to the tables of its ranks: one decoder after another, each with its limit.

Of a file only its summary stays in memory, whatever the size of the file: 0.7 MB for 20,000 kernels
with 2,000 collectives, 160 MiB at most, and of all files together about `MOST_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ...analysis.ranks.block import ranks_block
from ...analysis.ranks.rows import RankMemoryRow, Ranks
from ...analysis.ranks.summary import MOST_CALLS, MOST_INTERVALS, RankTrace
from ...record.record import Memory
from ..decoding import Decoding
from ..messages import Progressed
from .folder import FolderError, as_text, by_rank, rank_files

MOST_BYTES = 2**31
"""Of all summaries as they are stored; in memory they take about as much."""


def read_ranks(
    folder: Path,
    show: Callable[[Path, Progressed], None],
    limit_bytes: int = 0,
    device: int | None = None,
) -> Ranks:
    """The ranks of a folder side by side.

    Args:
        folder: Holds a chrome trace or an nsys export of each rank, a memory snapshot, or both.
        show: Called with the file that is being decoded, and its progress.
        limit_bytes: Memory that the decoding of one file may take; 0 as in `Decoding`.
        device: The device of files with several; None for the busiest of each.

    Raises:
        FolderError: The files are not those of one job's ranks.
        ForeignFileError: One of them cannot be read.
    """
    files = rank_files(folder)
    summaries: dict[Path, RankTrace] = {}
    memories: dict[Path, RankMemoryRow] = {}
    held_bytes = 0
    for path in (*files.traces, *files.snapshots):
        decoding = Decoding(path, limit_bytes, device)
        inspection = decoding.run(lambda step, path=path: show(path, step))  # type: ignore[misc]
        summary = decoding.entry.read_rank()
        if summary is not None:
            summaries[path] = summary
            held_bytes += decoding.entry.rank_path.stat().st_size
            if held_bytes > MOST_BYTES:
                raise FolderError(f"{folder} has more ranks of that size than can be compared")
        elif path in files.traces:
            raise FolderError(
                f"{path} has no collective by which ranks are compared, or more than "
                f"{MOST_CALLS:,} of them or {MOST_INTERVALS:,} pieces of work"
            )
        if inspection.memory is not None:
            memories[path] = _memory_row(path, inspection.memory)
    traces = by_rank((path, summaries[path].rank) for path in files.traces)
    snapshots = by_rank((path, None) for path in files.snapshots)
    sizes = {summary.world_size for summary in summaries.values()} - {None}
    if len(sizes) > 1:
        told = " and ".join(str(size) for size in sorted(sizes, key=str))
        raise FolderError(f"{folder} mixes jobs of {told} ranks: one folder, one job")
    if len({summary.source for summary in summaries.values()}) > 1:
        without = next(p for p, summary in summaries.items() if summary.source == "operators")
        raise FolderError(f"{without} has no work of a device, and other ranks have")
    world_size = sizes.pop() if sizes else None
    ranks = {rank: summaries[path] for rank, path in traces.items()}
    block = (
        ranks_block(
            as_text(folder), {rank: as_text(path.name) for rank, path in traces.items()}, ranks
        )
        if ranks
        else Ranks(folder=as_text(folder), missing={"rows": "memory snapshots have no times"})
    )
    known = ranks or snapshots
    held = snapshots or {rank: path for rank, path in traces.items() if path in memories}
    return msgspec.structs.replace(
        block,
        kind=("nsys-export" if files.are_exports else "chrome-trace") if ranks else None,
        world_size=world_size,
        absent=[rank for rank in range(world_size or 0) if rank not in known],
        left_out=[as_text(name) for name in files.left_out],
        memory=[msgspec.structs.replace(memories[path], rank=rank) for rank, path in held.items()],
    )


def _memory_row(path: Path, memory: Memory) -> RankMemoryRow:
    """The row of a file whose rank is not known yet."""
    named = [origin for origin in memory.origins if origin.stack]
    top = max(named, key=lambda origin: origin.bytes, default=None)
    return RankMemoryRow(
        rank=0,
        file=as_text(path.name),
        peak_bytes=memory.peak_allocated_bytes,
        reserved_bytes=memory.peak_reserved_bytes,
        end_bytes=memory.end_allocated_bytes,
        baseline_bytes=memory.baseline_bytes,
        largest_bytes=top.bytes if top else None,
        largest=top.stack[0] if top else None,
    )
