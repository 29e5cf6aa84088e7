"""Tables of the host of a file: ranges of users, Python functions, calls of the runtime."""

from __future__ import annotations

from sysbench.core.record.nsys import KernelSummary
from sysbench.core.record.record import Kernels
from sysbench.core.record.steps import HostRange, HostSide, MarkedSteps, StepRow
from sysbench.core.tables.table import Cell, Column, Table, field_of, fields_of, tabulate
from sysbench.core.trace.idle_causes import idle_label

ODD = "odd"
"""Mark of a step unlike the others of its kind."""


def steps_table(marked: MarkedSteps) -> Table:
    """Every step, then what lies outside of them: each column of times adds up to the span's."""
    rows = [*marked.rows, marked.outside]
    causes = dict.fromkeys(cause for row in rows for cause, ns in row.idle.items() if ns)

    def idle_column(cause: str) -> Column[StepRow]:
        return Column(f"{cause}_ns", lambda row: row.idle.get(cause, 0), heading=idle_label(cause))

    span_ns = marked.span_ns or 1
    work = "kernels" if marked.clock == "device" else "operators"
    return tabulate(
        rows,
        (
            Column("step", lambda row: "outside" if row.number is None else row.number),
            Column("kind", lambda row: row.kind or None, is_optional=True),
            Column("tokens", lambda row: row.tokens, is_optional=True),
            Column("requests", lambda row: row.requests, is_optional=True),
            Column("time_ns", lambda row: row.ns),
            Column("share", lambda row: row.ns / span_ns),
            *fields_of(StepRow, "busy_ns", "communication_ns"),
            *map(idle_column, causes),
            *fields_of(StepRow, "unattributed_ns"),
            Column("kernels", lambda row: row.kernels, heading=work),
            *fields_of(StepRow, "host_ns"),
            Column("odd", lambda row: ODD if row.is_odd else None, is_optional=True),
            *fields_of(StepRow, "name"),
        ),
        name="steps",
        title=f"Steps by {marked.family}, {_clock_words(marked)}: with outside "
        f"{marked.span_ns / 1e6:.2f} ms",
    )


def _clock_words(marked: MarkedSteps) -> str:
    if marked.clock == "host":
        return "their markers on the host"
    return "what each launched"


def steps_notes(marked: MarkedSteps) -> list[str]:
    """The odd steps by their numbers, markers that were left out, and the choice."""
    notes = []
    odd = [row for row in marked.rows if row.is_odd]
    if odd:
        numbers = ", ".join(str(row.number) for row in odd)
        are = "step is" if len(odd) == 1 else "steps are"
        notes.append(f"odd among its kind, {are}: {numbers}")
    if marked.left_out:
        markers = "marker begins" if marked.left_out == 1 else "markers begin"
        notes.append(f"{marked.left_out:,} {markers} inside another one and is no step of its own")
    if marked.chosen:
        notes.append(f"all other tables are of {marked.chosen_words}, per step")
    else:
        notes.append("--step N, or --steps N-M, makes all other tables those of a choice")
    return notes


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
