"""Limits that the process puts on itself before it measures."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from torch.autograd.profiler import profile

from sysbench.core.formatting import format_bytes
from sysbench.core.machine.host_sampler import limit_data_memory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.imports import uncollected

M_MMAP_THRESHOLD, LARGE_BYTES = -3, 128 * 2**10
"""Parameter number in malloc.h and glibc's initial value: mallopt(3)."""

OOM_RESERVE_BYTES = 4 * 2**20
"""Bytes that the memory pass frees when memory runs out, so that it can still report."""

OMP_VARIABLE = "OMP_NUM_THREADS"


def limit_memory(spec: RunSpec) -> None:
    """Limit the memory of tensors to ``spec.memory_limit`` bytes; 0 is no limit.

    On CUDA the limit applies to reserved bytes without the context. On the CPU the data segment may
    grow by that much until `lift_memory_limit`.
    """
    if not spec.memory_limit:
        return
    if spec.on_cuda:
        device = torch.device(spec.device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, spec.memory_limit / total), device)
        return
    _preallocate_non_tensor_memory()
    _unmap_large_blocks_on_free()
    limit_data_memory(spec.memory_limit)


def _preallocate_non_tensor_memory() -> None:
    """Allocate what would otherwise count against the limit without being a tensor.

    These are thread stacks and the modules that optimizers, autocast and the profiler import.
    """
    torch.ones(2**16).sum()
    with uncollected():
        importlib.import_module("torch._dynamo")
    with profile(use_kineto=True):
        pass


def _unmap_large_blocks_on_free() -> None:
    """Make glibc map large blocks separately and unmap them when freed.

    By default glibc keeps freed blocks of up to 32 MiB, fragmented, and they count against the
    limit: a step that needs 250 MiB takes 430. Every step faults its pages in again instead.
    """
    # Setting the threshold, even to its initial value, stops glibc from raising it.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def lift_memory_limit() -> int | None:
    """Remove the CPU's limit; return the bytes left under it, None without a limit.

    Work after the steps, and failure reports, need memory that no tensor holds.
    """
    cap, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    if cap == resource.RLIM_INFINITY:
        return None
    return max(0, cap - int(psutil.Process().memory_info().data))


@contextmanager
def without_limit(spec: RunSpec) -> Iterator[None]:
    """Exempt memory that the block allocates and keeps from the spec's CPU limit."""
    if not spec.memory_limit:
        yield
        return
    lift_memory_limit()
    yield
    limit_memory(spec)


def leftover_allocation_notice(spec: RunSpec) -> str | None:
    """Describe memory that torch reserved before the model is built; None if none."""
    if not spec.on_cuda:
        return None  # a fresh process has no cached blocks
    reserved = torch.cuda.memory_reserved(torch.device(spec.device))
    if not reserved:
        return None
    return f"not a clean start: torch holds {format_bytes(reserved)} of the device before the model"


def set_threads(spec: RunSpec) -> int:
    """Set the number of operator threads; return the number in force.

    The spec decides, else ``OMP_NUM_THREADS``. Otherwise one processor is left to the supervisor:
    with more threads than processors a step takes many times longer.
    """
    if spec.threads or not os.environ.get(OMP_VARIABLE):
        torch.set_num_threads(spec.threads or available_threads())
    return torch.get_num_threads()


def available_threads() -> int:
    """Processors that this process may use, minus one for the supervisor; at least one."""
    available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return max(1, (available or 1) - 1)
