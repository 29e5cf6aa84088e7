"""Read the timeline of a run or an imported file; old runs are decoded from their trace."""

from __future__ import annotations

from collections.abc import Callable

from sysbench.core.errors import NotFoundError
from sysbench.core.inspection.decoding import Decoding
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import open_regular, read_regular
from sysbench.core.trace.lanes import FILE, Lanes, decode_lanes

TRACE = "trace.json.gz"
MAX_BYTES = 2**29


class LanesReading:
    """Reads the timeline in the folder of the trace pass once."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._decoding: Decoding | None = None

    def run(self, show: Callable[[Progressed], None]) -> Lanes:
        """Return the timeline; decode the trace if it was recorded before there were timelines.

        Args:
            show: Called with the progress of decoding.

        Raises:
            NotFoundError: Neither a timeline nor a trace is there.
            DamagedFileError: The timeline is damaged.
            ForeignFileError: The trace cannot be decoded.
            DecodingCancelled: `cancel` was called.
        """
        folder = self._run.pass_folder("trace")
        path, trace = folder / FILE, folder / TRACE
        try:
            return decode_lanes(read_regular(path, MAX_BYTES, inside=self._run.path), path)
        except FileNotFoundError:
            pass
        try:
            open_regular(trace, inside=self._run.path).close()
        except FileNotFoundError:
            raise NotFoundError(f"there is neither {path} nor {trace}") from None
        self._decoding = Decoding(trace)
        self._decoding.run(show)
        path = self._decoding.entry.lanes_path
        try:
            return decode_lanes(read_regular(path, MAX_BYTES), path)
        except FileNotFoundError:
            raise NotFoundError(f"{trace} has no times of kernels or operators") from None

    def cancel(self) -> None:
        """End a decoding process; may be called from another thread."""
        if self._decoding is not None:
            self._decoding.cancel()
