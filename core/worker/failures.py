"""Turns an exception of a pass into the event that says what happened."""

from __future__ import annotations

import os
import re
import traceback

import torch

from ..events import OutOfMemory, WorkerFailed
from ..quantities import BINARY_UNITS
from ..spec import RunSpec
from .job import Report
from .workload import StepError

CPU_REFUSAL = re.compile(r"tried to allocate (\d+) bytes")
CUDA_REFUSAL = re.compile(r"Tried to allocate ([0-9.]+) ([KMGT]iB)")
NATIVE_REFUSALS = ("std::bad_alloc", "Cannot allocate memory", "could not create a memory")
STACK_FRAMES = 12


def report_failure(error: Exception, spec: RunSpec, report: Report) -> None:
    """Report the exception as out-of-memory or as a failure, with where it happened."""
    phase, cause = "build", error
    if isinstance(error, StepError) and isinstance(error.__cause__, Exception):
        phase, cause = error.phase, error.__cause__
    text = str(cause)
    if is_out_of_memory(cause):
        report(
            OutOfMemory(
                phase=phase,
                requested_bytes=requested_bytes(text),
                free_bytes=torch.cuda.mem_get_info()[0] if spec.on_cuda else None,
                allocated_bytes=torch.cuda.memory_allocated() if spec.on_cuda else None,
                message=text.splitlines()[0] if text else type(cause).__name__,
                stack=_own_frames(cause),
            )
        )
        return
    report(
        WorkerFailed(
            kind=_kind(cause),
            message=text or type(cause).__name__,
            traceback="".join(traceback.format_exception(error)),
            is_cuda_error="CUDA error" in text or "cuBLAS" in text or "CUDNN" in text.upper(),
        )
    )


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocator refused, the CUDA one or the host's."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        CPU_REFUSAL.search(text) is not None or any(word in text for word in NATIVE_REFUSALS)
    )


def requested_bytes(message: str) -> int | None:
    """The bytes that were asked for, from the allocator's message; None if it does not say."""
    if match := CPU_REFUSAL.search(message):
        return int(match[1])
    if match := CUDA_REFUSAL.search(message):
        return round(float(match[1]) * BINARY_UNITS[match[2]])
    return None


def _kind(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__} {os.strerror(error.errno)} ({error.errno})"
    return type(error).__name__


def _own_frames(error: Exception) -> list[str]:
    """Innermost frame first, without torch's own unless nothing else is left."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename]
    return [
        f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}"
        for frame in reversed(own or frames)
    ][:STACK_FRAMES]
