"""How much memory a real step takes on the CPU, by the allocations that the profiler sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile, record_function

from sysbench.core.worker.workloads.transformer import Workload


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """More threads than free cores make tiny operations a thousand times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def peaks_of(tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Gives phase to most live bytes in it, of a workload's second step.

    ``on_phase`` is called with each phase as it begins.
    """

    def measure(
        workload: Workload, on_phase: Callable[[str], None] = lambda phase: None
    ) -> dict[str, int]:
        workload.step(on_phase)  # makes the optimizer's state

        def mark(phase: str) -> None:
            on_phase(phase)
            with record_function(f"phase:{phase}"):
                pass

        resident = _resident_bytes(workload)
        with profile(use_kineto=True, profile_memory=True) as profiler:
            workload.step(mark)
        path = tmp_path / "trace.json"
        profiler.export_chrome_trace(str(path))
        return _peaks(path, resident)

    return measure


def _resident_bytes(workload: Workload) -> int:
    tensors: list[Tensor] = [workload.tokens, workload.targets]
    tensors += workload.model.parameters()
    tensors += workload.model.buffers()
    if workload.optimizer is not None:
        for state in workload.optimizer.state.values():
            tensors += state.values()
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _peaks(trace: Path, resident: int) -> dict[str, int]:
    events = [
        event
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["name"] == "[memory]" or event["name"].startswith("phase:")
    ]
    live, phase, peaks = resident, "", {"": 0}
    for event in sorted(events, key=lambda event: float(event["ts"])):
        if event["name"] == "[memory]":
            live += event["args"]["Bytes"]
        else:
            phase = event["name"].removeprefix("phase:")
        peaks[phase] = max(peaks.get(phase, 0), live)
    return {phase: peak for phase, peak in peaks.items() if phase}
