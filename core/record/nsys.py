"""Parts of the record's nsys block: all of an Nsight Systems export but its kernel table."""

from __future__ import annotations

from typing import Literal

import msgspec

Style = Literal["push/pop", "start/end"]


class KernelSummary(msgspec.Struct, frozen=True):
    """All calls of one kernel in the export: a row of NVIDIA's ``cuda_gpu_kern_sum``.

    Also a row of ``cuda_gpu_mem_time_sum``, with ``name`` the kind of copy, and of
    ``cuda_api_sum``, with ``name`` the call on the host. ``std_ns`` is the sample's standard
    deviation, 0 for a single call. ``share`` is of all rows' time.
    """

    name: str
    instances: int
    total_ns: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    share: float


class NvtxRange(msgspec.Struct, frozen=True):
    """All instances of one NVTX range that launched work: a row of ``nvtx_gpu_proj_sum``.

    ``projected_ns`` is, for each instance, from the first to the last of the GPU work that its own
    thread launched in it, and ``range_ns`` the time on the host; both summed. ``operations`` counts
    the CUDA calls that launched that work, ``kernels`` and ``kernel_ns`` the kernels among it and
    their own time. ``process_kernels`` and ``process_kernel_ns`` count what any thread of the
    process launched while the range was open: autograd launches the backward pass from its worker
    threads, so ``kernels`` of a range around ``loss.backward()`` is nearly 0.
    """

    range: str
    style: Style
    instances: int
    projected_ns: int
    range_ns: int
    operations: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    kernels: int
    kernel_ns: int
    process_kernels: int
    process_kernel_ns: int


class Nvtx(msgspec.Struct, frozen=True):
    """NVTX ranges with GPU work, the longest projection first.

    ``elsewhere`` are ranges in which only other threads launched something: NVIDIA's report does
    not have them. ``ranges`` counts all instances, with and without work. ``outside_kernels`` were
    launched outside all ranges of their thread, ``unlinked_kernels`` by a call that was not
    recorded. torch's emit_nvtx numbers each call of an operator: ``folded`` are rows and elsewhere
    with all calls of an operator as one, and empty if no name has such numbers.
    """

    rows: list[NvtxRange] = []
    elsewhere: list[NvtxRange] = []
    folded: list[NvtxRange] = []
    ranges: int = 0
    outside_kernels: int = 0
    outside_kernel_ns: int = 0
    unlinked_kernels: int = 0
    unlinked_kernel_ns: int = 0


class Clocks(msgspec.Struct, frozen=True):
    """Wall, span and busy time of an export, null if nothing contains them.

    ``wall_ns`` is from the first to the last of everything recorded, host and devices; ``span_ns``
    from the first to the last kernel of the busiest device; ``busy_ns`` the time in which a kernel
    ran there, overlaps counted once.
    """

    wall_ns: int | None = None
    span_ns: int | None = None
    busy_ns: int | None = None


class NsysDevice(msgspec.Struct, frozen=True):
    """One device of an export. Times are of kernels unless the name has another kind.

    ``summed_ns`` counts an overlap once for each kernel, ``busy_ns`` once, and
    ``busy_with_copies_ns`` with copies and fills. ``exposed_communication_ns`` is the part of
    ``communication_ns`` in which no other kernel ran.
    """

    device: int
    name: str | None
    kernels: int
    copies: int
    span_ns: int
    busy_ns: int
    summed_ns: int
    busy_with_copies_ns: int
    communication_ns: int
    exposed_communication_ns: int


class NsysFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Content of an export without its table of kernels by phase, module and operator.

    ``schema`` is the version of the export's layout, null if the export has none.
    """

    kernel_summary: list[KernelSummary] = []
    memory_summary: list[KernelSummary] = []
    api_summary: list[KernelSummary] = []
    nvtx: Nvtx = Nvtx()
    clocks: Clocks = Clocks()
    devices: list[NsysDevice] = []
    schema: str | None = None
    nsys_version: str | None = None
    missing: dict[str, str] = {}
