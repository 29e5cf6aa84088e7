"""Readings of memory while the memory pass runs, for who watches it."""

from __future__ import annotations

from pathlib import Path

import torch

from sysbench.core.record.events import MemoryRead
from sysbench.core.runs.worker_process import Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.stepped_workload import EnterPhase

STATUS = Path("/proc/self/status")


class Readings:
    """Reports the bytes held at the end of each phase, from the allocator's counters or the kernel.

    Neither asks for memory of the device, nor waits for it. On the CPU no counter tells what torch
    holds: there it is the process's resident set above what it was when this was made, and so with
    what the recording itself takes.
    """

    def __init__(self, spec: RunSpec, report: Report) -> None:
        self._device = torch.device(spec.device) if spec.on_cuda else None
        self._report = report
        self._before = 0 if spec.on_cuda else self._now()[0] or 0

    def read(self, step: int | None, phase: str) -> None:
        """Report the bytes held now, where they can be known."""
        held, peak = self._now()
        if held is None:
            return
        self._report(
            MemoryRead(
                kind="resident" if self._device is None else "allocated",
                step=step,
                phase=phase,
                held_bytes=max(held - self._before, 0),
                peak_bytes=None if peak is None else max(peak - self._before, 0),
            )
        )

    def around(self, step: int, enter: EnterPhase) -> EnterPhase:
        """``enter`` with a reading at the end of each phase."""
        phase = ""

        def entering(following: str) -> None:
            nonlocal phase
            if phase:
                self.read(step, phase)
            phase = following
            enter(following)

        return entering

    def _now(self) -> tuple[int | None, int | None]:
        """Bytes held, and their highest since the recorder last began to count."""
        if self._device is not None:
            return (
                torch.cuda.memory_allocated(self._device),
                torch.cuda.max_memory_allocated(self._device),
            )
        return resident_bytes()


def resident_bytes() -> tuple[int | None, int | None]:
    """Resident set of this process and its peak; None where the kernel does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None, None
    sizes = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    held, peak = (
        int(sizes[name].split()[0]) * 1024 if name in sizes else None for name in ("VmRSS", "VmHWM")
    )
    return held, peak
