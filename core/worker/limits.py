"""Limits that the process puts on itself before it measures."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

import psutil
import torch

from ..spec import RunSpec

PR_SET_PDEATHSIG = 1
OMP_VARIABLE = "OMP_NUM_THREADS"


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the supervisor dies, however it dies.

    Only Linux can; elsewhere the closing of standard input has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the request was in place.
        os._exit(1)


def limit_memory(spec: RunSpec) -> None:
    """Cap what tensors may hold to ``spec.memory_limit`` bytes; 0 is no cap.

    On CUDA the allocator's reserved bytes are capped, the context is not counted. On the
    CPU the data segment may grow by that much beyond what the process holds now.
    """
    if not spec.memory_limit:
        return
    if spec.on_cuda:
        device = torch.device(spec.device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, spec.memory_limit / total), device)
        return
    import resource

    # Threads reserve stacks; optimizers and autocast import much of torch: both count as
    # data and neither is a tensor, so they come before the look at what the process holds.
    torch.ones(2**16).sum()
    if spec.step == "train" or spec.precision in ("bf16", "fp16"):
        importlib.import_module("torch._dynamo")
    held = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (held + spec.memory_limit,) * 2)


def set_threads(spec: RunSpec) -> int:
    """Set how many host threads operators use; returns the number in force.

    Unless the spec says, ``OMP_NUM_THREADS`` does; else one processor is left to the
    supervisor, since threads that wait for a missing one slow a step down many times.
    """
    if spec.threads or not os.environ.get(OMP_VARIABLE):
        available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
        torch.set_num_threads(spec.threads or max(1, (available or 1) - 1))
    return torch.get_num_threads()
