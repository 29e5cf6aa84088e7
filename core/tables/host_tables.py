"""Tables of the host of a file: ranges of users, Python functions, calls of the runtime."""

from __future__ import annotations

from sysbench.core.record.nsys import KernelSummary
from sysbench.core.record.record import Kernels
from sysbench.core.record.steps import HostRange, HostSide
from sysbench.core.tables.table import Cell, Column, Table, field_of, tabulate

NOTE = (
    "own: of work launched in it and in no range inside; any thread: launched by others too while "
    "it was open, as backward is; host late: the GPU idle meanwhile, as nothing was launched yet"
)
COLUMNS: tuple[Column[HostRange], ...] = (
    field_of(HostRange, "total_ns", priority=1),
    field_of(HostRange, "own_ns", priority=2),
    field_of(HostRange, "meanwhile_ns", heading="any thread ms", priority=5),
    field_of(HostRange, "launched", priority=7),
    field_of(HostRange, "calls", priority=3),
    field_of(HostRange, "host_ns", priority=8),
    Column(
        "late_ns",
        lambda row: row.late_ns or None,
        heading="host late ms",
        is_optional=True,
        priority=6,
    ),
    field_of(HostRange, "name", priority=4, is_flexible=True),
)
CALL_COLUMNS: tuple[Column[KernelSummary], ...] = (
    field_of(KernelSummary, "total_ns", priority=1),
    field_of(KernelSummary, "share", priority=2),
    field_of(KernelSummary, "instances", heading="calls", priority=3),
    field_of(KernelSummary, "mean_ns", priority=5),
    field_of(KernelSummary, "median_ns", priority=6),
    field_of(KernelSummary, "min_ns", priority=7),
    field_of(KernelSummary, "max_ns", priority=8),
    field_of(KernelSummary, "std_ns", priority=9),
    field_of(KernelSummary, "name", priority=4, is_flexible=True),
)


def _work(kernels: Kernels) -> str:
    kind = "GPU time" if kernels.source == "kernels" else "operator time"
    return f"{kind} in all {kernels.steps} steps" if kernels.steps > 1 else kind


def annotations_table(kernels: Kernels, side: HostSide) -> Table:
    """Ranges that the program opened, and the time in none of them: own times add up to the busy
    time of the tables' window."""
    whose = "Annotations, as projected onto the device" if side.projected else "Annotations"
    return tabulate(
        side.annotations,
        COLUMNS,
        name="annotations",
        title=f"{whose}: {_work(kernels)} of what was launched in them",
        further=_rest(side.more_ns, side.elsewhere_ns) if side.annotations else (),
    )


def functions_table(kernels: Kernels, side: HostSide) -> Table:
    """Python functions outside of torch that launched work, by the first line of the function."""
    return tabulate(
        side.functions,
        COLUMNS,
        name="python",
        title=f"Python functions by file and first line: {_work(kernels)} of what they launched",
        further=_rest(side.more_functions_ns, side.no_function_ns) if side.functions else (),
    )


def calls_table(side: HostSide) -> Table:
    """Calls of CUDA's or HIP's runtime and driver, as ``cuda_api_sum`` has them."""
    return tabulate(
        side.calls,
        CALL_COLUMNS,
        name="api",
        title="Calls of the runtime by the host: cuda_api_sum",
    )


def _rest(more_ns: int, outside_ns: int) -> list[dict[str, Cell]]:
    rows = {"(more)": more_ns, "in none": outside_ns}
    return [{"own_ns": ns, "name": name} for name, ns in rows.items() if ns]
