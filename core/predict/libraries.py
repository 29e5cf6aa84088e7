"""Memory of a device that libraries, driver and context take beside the tensors of a step."""

from __future__ import annotations

from sysbench.core.predict.allocator_settings import MIB
from sysbench.core.spec.spec import RunSpec

WORKSPACES = "workspaces"
"""Name of the ledger's row."""

HOPPER_WORKSPACE = 32 * MIB
"""Bytes that torch gives each handle of cuBLAS on compute capability 9.0."""

WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
"""Bytes on every other, 8.125 MiB: ``:4096:2:16:8`` in ``CublasHandlePool.cpp`` of torch 2.9 to
2.13. ``CUBLAS_WORKSPACE_CONFIG`` changes both."""

CONTEXT_BYTES = 526 * MIB
"""Bytes of the CUDA context with torch's kernels and the libraries' handles, which no allocator
counts. Estimate for an 80 GB H100, not measured by this project. Published figures for torch
range from 0.3 to 0.6 GiB; a published message of an H100 that ran out (79.11 GiB, 1.69 free, 76.75
reserved) leaves 0.67 GiB. `UNCERTAINTY_SHARE` covers the rest."""

DRIVER_BYTES = 550 * MIB
"""Bytes of a card's memory that NVML counts and CUDA does not have: 81,559 MiB by NVML are
79.1 GiB in torch's messages of an H100, 24,564 MiB are 23.7 GiB of an RTX 4090."""

UNCERTAINTY_SHARE = 0.01
"""Share of a card's memory by which what driver and context take may differ from the above: on
cards of 16 to 80 GB CUDA lacks 256 to 690 MiB of what NVML counts."""


def workspace_bytes(capability: str | None) -> int:
    """Bytes of one handle's workspace on a device of that compute capability, such as ``9.0``.

    The larger one where the device is not known.
    """
    return HOPPER_WORKSPACE if capability in (None, "9.0") else WORKSPACE


def workspaces_bytes(spec: RunSpec, capability: str | None = None) -> int:
    """Bytes of all handles' workspaces in a step: a thread that multiplies has one; 0 on the CPU.

    The calling thread and autograd's thread each keep one until the process exits.
    """
    if spec.device == "cpu" or not (
        spec.workload == "transformer" or spec.attention_row.writes_scores
    ):
        return 0
    return (1 + spec.has_backward) * workspace_bytes(capability)
