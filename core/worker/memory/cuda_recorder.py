"""Recorder of CUDA's caching allocator: history, counters, and process memory by NVML."""

from __future__ import annotations

import importlib.util
import os
import pickle
import time
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch

from sysbench.core.errors import WorkerFailed
from sysbench.core.memory.allocations import Sounding
from sysbench.core.memory.block import UNSPLIT, Recording
from sysbench.core.memory.card import CardReading, block_sizes, segments_of
from sysbench.core.memory.history import Counters
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.runs.worker_process import Job
from sysbench.core.storage import write_atomically
from sysbench.core.worker.failures import has_caching_allocator, observe_refusals

MAX_EVENTS = 400_000
"""Size of the allocator's ring of events; a full ring drops the oldest."""

PICKLE_PROTOCOL = 4
"""The newest version that pytorch.org/memory_viz supports."""

SOUNDING_BYTES = (771, 773, 775)
"""Odd sizes that no tensor has, so that their events can be identified. The first may have to wait
for memory of the driver; the others are timed."""

NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""Variable that switches the caching allocator off, whatever its value."""
NO_PROCESS = "NVML does not report this process's share of the device"
NO_NVML = "nvidia-ml-py, which asks NVML for this process's share, is not installed beside torch"


class CudaRecorder:
    """Records from ``with`` to the end of the steady step.

    Writes ``snapshot.pickle`` into the job's folder, also when memory runs out.

    Attributes:
        released_ns: When cuBLAS freed its workspaces; None if torch cannot request it.
        workspaces: After an out-of-memory error, addresses that cuBLAS freed.
        soundings: Samples that relate the allocator's clock to `time.time_ns`.
    """

    def __init__(self, job: Job) -> None:
        """Raises WorkerFailed if the process has no allocator with a history."""
        if why := why_no_history():
            raise WorkerFailed(f"no memory ledger: {why}; `--passes timing,trace` needs none")
        self._path = job.path / "snapshot.pickle"
        self._device = torch.device(job.spec.device)
        self._snapshot: dict[str, Any] = {}
        self._events_before = 0
        self._events = 0
        self._counters = Counters()
        self._readings: dict[str, CardReading] = {}
        self.released_ns: int | None = None
        self.workspaces: list[int] = []
        self.soundings: list[Sounding] = []

    def __enter__(self) -> Self:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._events_before = self._count_events()
        self._begin_history()
        observe_refusals(self._take_out_of_memory)
        self._sound()
        return self

    def _begin_history(self) -> None:
        torch.cuda.memory._record_memory_history(
            "all", stacks="python", max_entries=MAX_EVENTS, device=self._device, clear_history=True
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._snapshot:
            with suppress(RuntimeError):  # must not replace the error that ended the recording
                self._find_workspaces()
        torch.cuda.memory._record_memory_history(None, device=self._device)

    def _find_workspaces(self) -> None:
        """Detect cuBLAS's blocks after an out-of-memory error, in a new history."""
        self._begin_history()
        self._release_workspaces()
        trace = torch.cuda.memory._snapshot()["device_traces"][self._index]
        self.workspaces = [row["addr"] for row in trace if row["action"] == "free_completed"]

    @property
    def _index(self) -> int:
        index = self._device.index
        return torch.cuda.current_device() if index is None else index

    def read(self, column: str, *, of_peak: bool = False) -> None:
        """Read the bytes in use and reset the peak counters.

        Args:
            of_peak: The column is the peak since the last reading. The device is read now either
                way, because a caching allocator returns no memory to it.
        """
        torch.cuda.synchronize(self._device)
        count = torch.cuda.max_memory_allocated if of_peak else torch.cuda.memory_allocated
        self._readings[column] = _read_card(self._device, allocated=count(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)

    def end_steady_step(self) -> None:
        """Read counters and process memory after the steady step, then take the history."""
        torch.cuda.synchronize(self._device)
        self._counters = Counters(
            peak_allocated=torch.cuda.max_memory_allocated(self._device),
            peak_reserved=torch.cuda.max_memory_reserved(self._device),
            end_allocated=torch.cuda.memory_allocated(self._device),
        )
        self.read("steady end")  # resets the peaks, so the counters are read before
        # After the readings, so that they include the workspaces; before the snapshot, so that
        # the history has the frees, by which the analysis recognises the workspaces.
        self._release_workspaces()
        self._sound()
        self._take_snapshot()

    def _sound(self) -> None:
        """Allocate and free small blocks between two clock readings."""
        for size in SOUNDING_BYTES:
            before_ns = time.time_ns()
            block = torch.empty(size, dtype=torch.uint8, device=self._device)
            after_ns = time.time_ns()
            del block
            self.soundings.append(Sounding(before_ns, after_ns, size))

    def _take_snapshot(self) -> None:
        """Copy the history now: ending the recording clears it."""
        self._events = self._count_events() - self._events_before
        self._snapshot = torch.cuda.memory._snapshot()

    def _release_workspaces(self) -> None:
        """Make cuBLAS free its workspaces; only these frees identify them."""
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            self.released_ns = time.time_ns()  # before the call: frees at or after it are these
            clear()

    def export(self) -> Recording:
        """Write the artifact and return the recording.

        Raises:
            OSError: The artifact could not be written.
            DamagedFileError: This version cannot read the snapshot's format.
        """
        self._write(self._snapshot)
        device = self._index
        snapshot = snapshot_from(self._snapshot)
        history = snapshot.history(device)
        sizes = block_sizes(self._snapshot, device)
        missing = {}
        if any(reading.process is None for reading in self._readings.values()):
            has_nvml = importlib.util.find_spec("pynvml") is not None
            missing["card"] = NO_PROCESS if has_nvml else NO_NVML
        if sizes.bytes is None:
            missing[f"ledger.{UNSPLIT}"] = sizes.missing
        else:
            history = replace(history, block=sizes.bytes)
        return Recording(
            source="cuda-snapshot",
            history=history,
            counters=self._counters,
            readings=self._readings,
            segments=segments_of(self._snapshot, device),
            refusal=snapshot.refusal(device),
            # The counters saw every event, the ring kept the last `MAX_EVENTS`.
            events_dropped=max(0, self._events - len(history)),
            missing=missing,
        )

    def _count_events(self) -> int:
        """Number of allocations and frees since the process started."""
        stats = torch.cuda.memory_stats(self._device)
        return int(stats.get("allocation.all.allocated", 0) + stats.get("allocation.all.freed", 0))

    def _write(self, snapshot: dict[str, Any]) -> None:
        write_atomically(self._path, pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL))

    def _take_out_of_memory(self, *_: int) -> None:
        """Take the history just before the allocator raises, while every tensor is alive.

        The last refusal counts: the process recovered from earlier ones.
        """
        self._take_snapshot()
        self._counters = Counters(end_allocated=torch.cuda.memory_allocated(self._device))
        with suppress(OSError):  # a full disk must not replace the out-of-memory error
            self._write(self._snapshot)


def why_no_history() -> str:
    """Return the reason why CUDA's memory has no history to record; empty if it has one."""
    backend = torch.cuda.get_allocator_backend()
    if not has_caching_allocator():
        return f"the allocator is {backend}, and torch records only its own caching allocator"
    if NO_CACHING in os.environ:
        return f"{NO_CACHING} is set: torch's allocator counts and records nothing then"
    return ""


def _read_card(device: torch.device, *, allocated: int) -> CardReading:
    free, total = torch.cuda.mem_get_info(device)
    shares = _process_shares(device)
    own = shares.pop(os.getpid(), None)
    return CardReading(
        used=total - free,
        allocated=allocated,
        reserved=torch.cuda.memory_reserved(device),
        process=own,
        others=None if own is None else sum(shares.values()),
    )


def _nvml_handle(pynvml: Any, uuid: str) -> Any:
    """Return NVML's handle of a GPU or of a slice of one; raises NVMLError for neither."""
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _process_shares(device: torch.device) -> dict[int, int]:
    """Device bytes by process id; empty if NVML does not answer."""
    try:
        import pynvml  # lazy: optional in the user's Python
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        try:
            handle = _nvml_handle(pynvml, str(torch.cuda.get_device_properties(device).uuid))
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            processes += pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return {}
    return {
        process.pid: process.usedGpuMemory
        for process in processes
        if process.usedGpuMemory is not None
    }
