"""How much memory a real step takes on the CPU, by the allocations that the profiler sees.

Library workspace is left out, as in a prediction: it depends on the instructions of the machine.
That nothing of the step's own is left out with it, the memory pass's tests hold against storages.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile, record_function

from sysbench.core.memory.allocations import Notes, replay_allocations
from sysbench.core.memory.profiled import HOST, ProfiledTrace
from sysbench.core.worker.workloads.make_workload import Workload
from sysbench.core.worker.workloads.stepped_workload import SteppedWorkload, tensors_in


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """More threads than free cores make tiny operations a thousand times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def peaks_of(tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Gives phase to most live bytes of tensors in it, of a workload's second step.

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
    tensors: list[Tensor] = [*workload.inputs, *workload.cached]
    tensors += workload.model.parameters()
    tensors += workload.model.buffers()
    tensors += tensors_in(workload.states)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _peaks(trace: Path, resident: int) -> dict[str, int]:
    text = trace.read_bytes()
    history = ProfiledTrace(text).history(HOST)[0]
    live = replay_allocations(history, Notes()).without_library
    live += resident - live[0]
    marks = _phases(text)
    begins = [history.instant(time_ns) for _, time_ns in marks]
    return {
        phase: int(live[begin : end + 1].max())
        for (phase, _), begin, end in zip(marks, begins, [*begins[1:], len(history)], strict=True)
        if phase
    }


def _phases(trace: bytes) -> list[tuple[str, int]]:
    """Each phase and when it began, in nanoseconds; the empty name ends the step."""
    whole = json.loads(trace)
    marks = [
        (event["name"].removeprefix("phase:"), round(event["ts"] * 1000))
        for event in whole["traceEvents"]
        if event["name"].startswith("phase:")
    ]
    return [(phase, whole["baseTimeNanoseconds"] + at) for phase, at in sorted(marks, key=_time)]


def _time(mark: tuple[str, int]) -> int:
    return mark[1]


def cuda_phase_peaks(make: Callable[[], SteppedWorkload]) -> dict[str, int]:
    """Peak of each phase of the third step in CUDA's allocator, from before the workload is made.

    In bytes as requested, which is predicted: an allocator's block can be larger. cuBLAS's
    workspaces are made before, once a thread, 32 MiB on Hopper: they belong to no step.
    """
    gc.collect()  # what a test that failed before this one still holds
    torch.cuda.empty_cache()
    weight = torch.zeros(64, 64, device="cuda:0", requires_grad=True)
    torch.autograd.backward((weight @ weight).sum())
    outside = _requested("current")
    workload = make()
    measured: dict[str, int] = {}
    phases = [""]

    def on_phase(phase: str) -> None:
        measured[phases[-1]] = _requested("peak") - outside
        torch.cuda.reset_peak_memory_stats()
        phases.append(phase)

    for _ in range(3):
        workload.step(on_phase)
    return measured


def _requested(what: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{what}"])
