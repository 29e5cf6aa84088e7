"""Limits that the process puts on itself before it measures."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from torch.autograd.profiler import profile

from ..formatting import format_bytes
from ..spec.spec import RunSpec

M_MMAP_THRESHOLD, LARGE_BYTES = -3, 128 * 2**10
"""The parameter's number in malloc.h, and the value that glibc begins with: mallopt(3)."""

OOM_RESERVE_BYTES = 4 * 2**20
"""What the memory pass gives back when memory runs out, so that there is some to tell it with."""

OMP_VARIABLE = "OMP_NUM_THREADS"


def limit_memory(spec: RunSpec) -> None:
    """Cap what tensors may hold to ``spec.memory_limit`` bytes; 0 is no cap.

    On CUDA the allocator's reserved bytes are capped, the context is not counted. On the
    CPU the data segment may grow by that much beyond what the process holds now, until
    `lift_memory_limit`.
    """
    if not spec.memory_limit:
        return
    if spec.on_cuda:
        device = torch.device(spec.device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, spec.memory_limit / total), device)
        return
    import resource

    _preallocate_non_tensor_memory()
    _unmap_large_blocks_on_free()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (held + spec.memory_limit, hard))


def _preallocate_non_tensor_memory() -> None:
    """Take now what would count as data later, before the look at what the process holds.

    Threads reserve stacks, the profiler's among them; optimizers, autocast and the profiler
    import much of torch.
    """
    torch.ones(2**16).sum()
    importlib.import_module("torch._dynamo")
    with profile(use_kineto=True):
        pass


def _unmap_large_blocks_on_free() -> None:
    """Make each large block a mapping of its own, which ends when it is freed.

    glibc keeps freed blocks of up to 32 MiB for later, in pieces, and they count: a step that
    needs 250 MiB then takes 430. The price is time, the pages are new in every step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def lift_memory_limit() -> int | None:
    """Take the CPU's cap away; returns the bytes that it had left, None where nothing capped.

    What comes after the steps needs memory that is no tensor's; so does telling that it ran out.
    """
    import resource

    cap, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    if cap == resource.RLIM_INFINITY:
        return None
    return max(0, cap - int(psutil.Process().memory_info().data))


@contextmanager
def without_limit(spec: RunSpec) -> Iterator[None]:
    """What is taken inside and kept does not count against the spec's limit on the CPU."""
    if not spec.memory_limit:
        yield
        return
    lift_memory_limit()
    yield
    limit_memory(spec)


def leftover_allocation_notice(spec: RunSpec) -> str | None:
    """What is wrong with the state that a pass begins in; None if nothing is allocated."""
    if not spec.on_cuda:
        return None  # a fresh process, whose allocator keeps nothing
    held = torch.cuda.memory_reserved(torch.device(spec.device))
    if not held:
        return None
    return f"not a clean start: torch holds {format_bytes(held)} of the device before the model"


def set_threads(spec: RunSpec) -> int:
    """Set how many host threads operators use; returns the number in force.

    Unless the spec says, ``OMP_NUM_THREADS`` does; else one processor is left to the
    supervisor, since threads that wait for a missing one slow a step down many times.
    """
    if spec.threads or not os.environ.get(OMP_VARIABLE):
        torch.set_num_threads(spec.threads or available_threads())
    return torch.get_num_threads()


def available_threads() -> int:
    """Processors that this process may use, but for the supervisor's; at least one."""
    available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return max(1, (available or 1) - 1)
