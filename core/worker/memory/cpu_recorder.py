"""Recorder of the CPU allocator, using the profiler."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.autograd.profiler import profile

from sysbench.core.errors import WorkerFailed
from sysbench.core.memory.allocations import Sounding
from sysbench.core.memory.block import NO_COUNTER, Recording
from sysbench.core.memory.card import CardReading
from sysbench.core.memory.profiled import HOST, ProfiledTrace
from sysbench.core.runs.worker_process import Job
from sysbench.core.storage import write_atomically
from sysbench.core.worker.limits import OOM_RESERVE_BYTES, lift_memory_limit
from sysbench.core.worker.memory.readings import resident_bytes

CLEAR_PEAK_RESIDENT = "5"
"""Value to write into ``clear_refs`` to reset the peak resident set: proc(5)."""


class CpuRecorder:
    """Records inside ``with``; allocations of libraries are not seen.

    Writes ``allocations.json.gz``, a chrome trace, into the job's folder.
    """

    def __init__(self, job: Job) -> None:
        self._path = job.path / "allocations.json.gz"
        self._missing = {
            "peak_reserved_bytes": "the CPU allocator reserves nothing ahead",
            "residual_bytes": NO_COUNTER,
        }
        if job.spec.compiles:
            self._missing["largest.stack"] = (
                "Python stacks: compiling makes too many calls to trace"
            )
        # Not torch.profiler.profile: starting that one imports all of torch's compiler.
        self._profile = profile(
            use_kineto=True, profile_memory=True, with_stack=not job.spec.compiles
        )
        self._readings: dict[str, CardReading] = {}
        self._free_at_end: int | None = None
        self.released_ns: int | None = None
        self.workspaces: list[int] = []
        self.soundings: list[Sounding] = []

    def __enter__(self) -> Self:
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        free_bytes = lift_memory_limit()  # decoding the recording needs memory
        if free_bytes is not None:
            # The pass freed its reserve on the way here; the workload never had these bytes.
            self._free_at_end = max(0, free_bytes - OOM_RESERVE_BYTES)
        try:
            self._profile.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        except (RuntimeError, MemoryError):
            if error is None:  # otherwise ``error`` is the cause
                raise

    def read(self, column: str, *, of_peak: bool = False) -> None:
        """Read the process's resident set, or its peak since the last reading."""
        now, peak = resident_bytes()
        self._readings[column] = CardReading(used=(peak or now) if of_peak else now)
        # Where the reset fails, later peaks are those since the process began.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(CLEAR_PEAK_RESIDENT)

    def end_steady_step(self) -> None:
        """Read the resident set after the steady step, its peak first."""
        self.read("peak", of_peak=True)
        self.read("steady end")

    def export(self) -> Recording:
        """Write the artifact and return the recording, after the ``with`` block.

        Raises:
            OSError: The artifact could not be written.
            WorkerFailed: The profiler itself ran out of memory and kept nothing.
        """
        if self._profile.kineto_results is None:
            raise WorkerFailed("the profiler also ran out of memory and kept nothing")
        plain = self._path.with_suffix("")
        self._profile.export_chrome_trace(str(plain))  # type: ignore[no-untyped-call]
        data = plain.read_bytes()
        write_atomically(self._path, gzip.compress(data, compresslevel=1))
        plain.unlink()
        trace = ProfiledTrace(data)
        return Recording(
            source="cpu-profiler",
            history=trace.history(HOST)[0],
            refusal=trace.refusal(),
            free_at_end=self._free_at_end,
            readings=self._readings,
            missing=self._missing,
        )
