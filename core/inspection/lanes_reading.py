"""Read the timeline of a run or an imported file; old runs are decoded from their trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sysbench.core.errors import NotFoundError
from sysbench.core.inspection.decoding import Decoding
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import open_regular, read_regular
from sysbench.core.trace.lanes import LANES_FILE, Lanes, decode_lanes

TRACE = "trace.json.gz"
MAX_BYTES = 2**29


class LanesReading:
    """Reads the timeline of a run, of the entry of an imported file, or of a file, once."""

    def __init__(self, source: RunDirectory | Path) -> None:
        self._source = source
        self._decoding: Decoding | None = None

    def run(self, show: Callable[[Progressed], None]) -> Lanes:
        """Return the timeline; decode a file, or a run from before there were timelines.

        Raises NotFoundError if there is none; DamagedFileError, and as `Decoding.run`.
        """
        if isinstance(self._source, Path):
            return self._decode(self._source, show)
        folder, inside = self._source.pass_folder("trace"), self._source.path
        path, trace = folder / LANES_FILE, folder / TRACE
        try:
            return decode_lanes(read_regular(path, MAX_BYTES, inside=inside), path)
        except FileNotFoundError:
            pass
        try:
            open_regular(trace, inside=inside).close()
        except FileNotFoundError:
            names = " nor ".join(str(file.relative_to(inside)) for file in (path, trace))
            raise NotFoundError(f"{self._source.id} has neither {names}") from None
        return self._decode(trace, show)

    def _decode(self, file: Path, show: Callable[[Progressed], None]) -> Lanes:
        self._decoding = Decoding(file)
        self._decoding.run(show)
        path = self._decoding.entry.lanes_path
        try:
            return decode_lanes(read_regular(path, MAX_BYTES), path)
        except FileNotFoundError:
            raise NotFoundError(f"{file} has no times of kernels or operators") from None

    def cancel(self) -> None:
        """End a decoding process; may be called from another thread."""
        if self._decoding is not None:
            self._decoding.cancel()
