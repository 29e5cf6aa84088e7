"""Live memory readings during the memory pass."""

from __future__ import annotations

from pathlib import Path

import torch

from sysbench.core.record.events import MemoryRead
from sysbench.core.runs.worker_process import Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import text_of
from sysbench.core.worker.workloads.stepped_workload import EnterPhase

STATUS = Path("/proc/self/status")


class Readings:
    """Reports the bytes held at the end of each phase.

    Reading neither allocates on the device nor waits for it. On the CPU it is the growth of the
    process's resident set, which includes the recording itself.
    """

    def __init__(self, spec: RunSpec, report: Report) -> None:
        self._device = torch.device(spec.device) if spec.on_cuda else None
        self._report = report
        self._before = 0 if spec.on_cuda else self._now()[0] or 0

    def read(self, step: int | None, phase: str) -> None:
        """Report the bytes held now, if they can be read."""
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
        """Wrap ``enter`` to read at the end of each phase."""
        phase = ""

        def entering(following: str) -> None:
            nonlocal phase
            if phase:
                self.read(step, phase)
            phase = following
            enter(following)

        return entering

    def _now(self) -> tuple[int | None, int | None]:
        """Bytes held, and their peak since the recorder last reset it."""
        if self._device is not None:
            return (
                torch.cuda.memory_allocated(self._device),
                torch.cuda.max_memory_allocated(self._device),
            )
        return resident_bytes()


def resident_bytes() -> tuple[int | None, int | None]:
    """Resident set of this process and its peak; None if the kernel does not report them."""
    lines = text_of(STATUS).splitlines()
    sizes = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    held, peak = (
        int(sizes[name].split()[0]) * 1024 if name in sizes else None for name in ("VmRSS", "VmHWM")
    )
    return held, peak
