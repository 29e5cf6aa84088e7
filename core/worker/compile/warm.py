"""Seconds of compiling with a full cache, measured by compiling again in a fresh process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from sysbench.core.formatting import format_bytes
from sysbench.core.machine.children import python_child
from sysbench.core.machine.host_sampler import die_with_parent
from sysbench.core.record.record import Compile
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.plain_paths import use_plain_paths
from sysbench.core.worker.imports import uncollected

MODULE = "sysbench.core.worker.compile.warm"
RESULT = "compiled-again.json"
TIMEOUT_SECONDS = 1700.0
"""Less than the supervisor's timeout for compiling workers."""


def with_warm_seconds(job: Job, block: Compile) -> Compile:
    """Add the seconds that a fresh process needs to compile from the same cache.

    Call it after this process freed its model: a full device has no space for both.
    """
    held_bytes = _let_go(job.spec)
    result = job.path / RESULT
    try:
        subprocess.run(
            python_child(MODULE, str(result)),
            input=msgspec.json.encode(job.spec),
            check=True,
            timeout=TIMEOUT_SECONDS,
        )
        again = msgspec.json.decode(result.read_bytes(), type=Compile)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        beside = f", beside {format_bytes(held_bytes)} that this one held" if held_bytes else ""
        return _without(block, f"the second process failed{beside}, see the log: {error}")
    if again.cache_misses or not again.cache_hits:
        return _without(block, "the second process did not find the graphs in the cache")
    return msgspec.structs.replace(block, warm_seconds=again.compile_seconds)


def _let_go(spec: RunSpec) -> int:
    """Free this process's device memory; return the bytes that remain."""
    import torch  # lazy: imports torch from a plain path

    # Captured CUDA graphs keep their pools after their model is gone.
    torch.compiler.reset()
    # The timing pass froze what it had built, the model included.
    gc.unfreeze()
    gc.collect()
    if not spec.on_cuda:
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(torch.device(spec.device))


def _without(block: Compile, reason: str) -> Compile:
    return msgspec.structs.replace(block, missing=block.missing | {"warm_seconds": reason})


def main() -> None:
    """Compile the spec on standard input once and write the compile block to the named file."""
    die_with_parent(os.getppid())
    use_plain_paths()
    with uncollected():
        import torch  # lazy: torch is imported from a plain path

        from sysbench.core.worker.boot import prepare_torch  # lazy: as torch
        from sysbench.core.worker.compile.apply import describe_compilation  # lazy: as torch
        from sysbench.core.worker.limits import limit_memory  # lazy: as torch
        from sysbench.core.worker.workloads.make_workload import make_workload  # lazy: as torch

    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=RunSpec)
    prepare_torch(spec)
    limit_memory(spec)
    workload = make_workload(spec)
    began = time.perf_counter()
    workload.step(lambda phase: None)
    if spec.on_cuda:
        torch.cuda.synchronize()
    block = describe_compilation(spec, (time.perf_counter() - began) * 1e3)
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(block))


if __name__ == "__main__":
    main()
