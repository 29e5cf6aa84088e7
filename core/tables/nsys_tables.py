"""Tables of an Nsight Systems recording: NVIDIA's sums, clocks, devices, ranges."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sysbench.core.record.record import Nsys
from sysbench.core.record.steps import KernelSummary, NsysFacts
from sysbench.core.tables.kernel_tables import kernel_table
from sysbench.core.tables.table import Column, Row, Table, attributes, facts, tabulate


def record_tables(nsys: Nsys) -> list[Table]:
    """Return all tables of the nsys pass in reading order; some may be empty."""
    attributed = msgspec.structs.replace(
        kernel_table(nsys.kernels),
        name="nsys-kernels",
        title=f"Kernels under nsys: one step of {nsys.kernels.step_ms:.2f} ms",
    )
    return [*nsys_tables(nsys), *([attributed] if nsys.kernels.rows else [])]


def nsys_tables(nsys: NsysFacts) -> list[Table]:
    """Return the tables of an export, without attributed kernels."""
    return [
        clock_table(nsys),
        device_table(nsys),
        summary_table(
            nsys.kernel_summary,
            name="nsys-kernel-sum",
            title="Kernels by short name over the whole export: cuda_gpu_kern_sum",
        ),
        summary_table(
            nsys.memory_summary,
            name="nsys-copy-sum",
            title="Copies and fills over the whole export: cuda_gpu_mem_time_sum",
        ),
        summary_table(
            nsys.api_summary,
            name="nsys-api-sum",
            title="Calls of CUDA by the host over the whole export: cuda_api_sum",
        ),
        range_table(nsys),
    ]


def clock_table(nsys: NsysFacts) -> Table:
    """Wall, span and busy time, kernels outside of ranges, and missing data."""
    clocks, nvtx = nsys.clocks, nsys.nvtx
    share = clocks.busy_ns / clocks.span_ns if clocks.busy_ns and clocks.span_ns else None
    table = facts(
        "nsys-clocks",
        "Clocks of the export: GPU span and busy are of its busiest device, kernels only",
        {
            **attributes(clocks, "wall_ns", "span_ns", "busy_ns"),
            "busy_share": share,
            **attributes(nvtx, "ranges", "outside_kernels", "outside_kernel_ns"),
            **attributes(nvtx, "unlinked_kernels", "unlinked_kernel_ns"),
        },
        {"span_ns": "no kernels", "busy_ns": "no kernels", "busy_share": "no kernels"},
    )
    lacking: list[Row] = [(f"not here: {name}", None, why) for name, why in nsys.missing.items()]
    return msgspec.structs.replace(table, rows=(*table.rows, *lacking))


def device_table(nsys: NsysFacts) -> Table:
    return tabulate(
        nsys.devices,
        "device",
        "name",
        Column("kernels", priority=5),
        Column("copies", priority=6, about="copies and fills"),
        Column("span_ns", priority=1),
        Column("busy_ns", priority=2),
        Column("summed_ns", priority=8, about="sum of kernel times; overlaps count repeatedly"),
        Column("busy_with_copies_ns", priority=7, about="time in which a kernel, copy or fill ran"),
        Column("communication_ns", priority=4),
        Column("exposed_communication_ns", priority=3),
        name="nsys-devices",
        title="Devices of the export: times of kernels, overlaps counted once but for summed",
    )


def summary_table(rows: Sequence[KernelSummary], *, name: str, title: str) -> Table:
    """Times by name; shares add up to one."""
    return tabulate(
        rows,
        Column("total_ns", priority=1),
        Column("share", priority=2),
        Column("instances", priority=3),
        Column("mean_ns", priority=5),
        Column("median_ns", priority=6),
        Column("min_ns", priority=7),
        Column("max_ns", priority=8),
        Column("std_ns", priority=9),
        Column("name", priority=4, is_flexible=True, is_kernel=True),
        name=name,
        title=title,
    )


def range_table(nsys: NsysFacts) -> Table:
    """NVTX ranges by projected time, then those in which only other threads launched work."""
    nvtx = nsys.nvtx
    alike = ", the calls of an operator as one" if nvtx.folded else ""
    return tabulate(
        nvtx.folded or (*nvtx.rows, *nvtx.elsewhere),
        Column("projected_ns", priority=1, about="from its first GPU work to its last, summed"),
        Column("range_ns", priority=7, about="time of the range on the host"),
        Column("instances", priority=2),
        Column("operations", priority=6, about="calls of its own thread that launched work"),
        Column("kernels", priority=4),
        Column("kernel_ns", priority=5, about="sum of its kernel times"),
        Column("process_kernels", priority=8, about="kernels of any thread in that time"),
        Column("process_kernel_ns", priority=9, about="time of kernels of any thread in that time"),
        Column("range", priority=3, is_flexible=True, about="text of the NVTX range"),
        Column("style", priority=10, about="push and pop, or start and end"),
        name="nvtx",
        title="NVTX ranges: their work on the GPU, from its first to its last "
        f"(nvtx_gpu_proj_sum{alike}), and the kernels of all threads in that time",
    )
