"""Tables of the host: user annotations, Python functions, runtime calls."""

from __future__ import annotations

from sysbench.core.formatting import counted
from sysbench.core.record.record import Kernels
from sysbench.core.record.steps import HostRange, HostSide, MarkedSteps, StepRow
from sysbench.core.tables.table import Cell, Column, Table, columns_for, tabulate
from sysbench.core.trace.classify import idle_label

ODD = "odd"
"""Marks a step that differs from others of its kind."""


def steps_table(marked: MarkedSteps) -> Table:
    """All steps, then the time outside of them; time columns add up to the span."""
    rows = [*marked.rows, marked.outside]
    causes = dict.fromkeys(cause for row in rows for cause, ns in row.idle.items() if ns)

    def idle_column(cause: str) -> Column[StepRow]:
        return Column(
            f"{cause}_ns",
            lambda row: row.idle.get(cause, 0),
            heading=idle_label(cause),
            about="idle time with this cause",
        )

    span_ns = marked.span_ns or 1
    on_host = marked.clock == "host"
    clock = "their markers on the host" if on_host else "each with the work it launched"
    work = "kernels" if marked.clock == "device" else "operators"
    return tabulate(
        rows,
        Column("step", lambda row: "outside" if row.number is None else row.number),
        Column("kind", lambda row: row.kind or None, is_optional=True),
        Column("tokens", is_optional=True, about="tokens of the step"),
        Column("requests", is_optional=True, about="requests that the step served"),
        Column("time_ns", "ns", about="time of the step's work, or of its marker"),
        Column("share", lambda row: row.ns / span_ns),
        Column("busy_ns", about="time in which kernels, copies or fills, or operators, ran"),
        Column("communication_ns", about="time in which a collective ran and no other kernel"),
        *map(idle_column, causes),
        Column(
            "unattributed_ns",
            about="time after a launch whose work the trace does not have; neither busy nor idle",
        ),
        Column(
            "loading_ns",
            lambda row: row.loading_ns or None,
            is_optional=True,
            about="time spent waiting for the data loader",
        ),
        Column(
            "kernels",
            heading=work,
            about="kernels, copies and fills, or operators, that began in it",
        ),
        "host_ns",
        Column(
            "odd",
            lambda row: ODD if row.is_odd else None,
            is_optional=True,
            about="marks a step that differs from others of its kind",
        ),
        "name",
        name="steps",
        title=f"Steps by {marked.family}: with outside {marked.span_ns / 1e6:.2f} ms, {clock}",
    )


def steps_notes(marked: MarkedSteps) -> list[str]:
    """Name odd steps, ignored markers and the selection."""
    notes = []
    odd = [row for row in marked.rows if row.is_odd]
    if odd:
        numbers = ", ".join(str(row.number) for row in odd)
        are = "step" if len(odd) == 1 else "steps"
        notes.append(f"odd {are}: {numbers}")
    if empty := sum(row.is_empty for row in marked.rows):
        events = "GPU event" if marked.clock == "device" else "operator"
        notes.append(f"{empty:,} of {counted(len(marked.rows), 'step')} without a single {events}")
    if marked.left_out:
        markers = "marker starts" if marked.left_out == 1 else "markers start"
        notes.append(f"{marked.left_out:,} {markers} inside another one and is ignored")
    if marked.chosen:
        words = "kernels and tree per step, others in sum"
        notes.append(f"all other tables are of {marked.chosen_words}: {words}")
    else:
        notes.append("--step N, or --steps N-M, restricts all other tables to these steps")
    return notes


NOTE = (
    "own: without nested ranges; any thread: with work that other threads launched in that time, "
    "such as backward; host late: GPU idle because the host had launched nothing yet"
)
COLUMNS = columns_for(
    HostRange,
    Column("total_ns", priority=1, about="busy time of work launched inside"),
    Column("own_ns", priority=2),
    Column("meanwhile_ns", heading="any thread ms", priority=5),
    Column("launched", priority=7, about="kernels, copies and fills launched"),
    Column("calls", priority=3),
    Column("host_ns", priority=8),
    Column(
        "late_ns",
        lambda row: row.late_ns or None,
        heading="host late ms",
        is_optional=True,
        priority=6,
        about="device idle because the host was late to launch",
    ),
    Column("name", priority=4, is_flexible=True),
)


def _work(kernels: Kernels) -> str:
    kind = "GPU time" if kernels.source == "kernels" else "operator time"
    return f"{kind} in all {kernels.steps} steps" if kernels.steps > 1 else kind


def annotations_table(kernels: Kernels, side: HostSide) -> Table:
    """Annotations and the time outside of them; ``own_ns`` adds up to the busy time."""
    whose = "Annotations, as projected onto the device" if side.projected else "Annotations"
    return tabulate(
        side.annotations,
        *COLUMNS,
        name="annotations",
        title=f"{whose}: {_work(kernels)} of what was launched in them",
        further=_rest(side.more_ns, side.elsewhere_ns) if side.annotations else (),
    )


def functions_table(kernels: Kernels, side: HostSide) -> Table:
    """Python functions outside of torch that launched work, by first line."""
    return tabulate(
        side.functions,
        *COLUMNS,
        name="python",
        title=f"Python functions by file and first line: {_work(kernels)} of what they launched",
        further=_rest(side.more_functions_ns, side.no_function_ns) if side.functions else (),
    )


def calls_table(side: HostSide) -> Table:
    """CUDA or HIP runtime and driver calls, as in ``cuda_api_sum``."""
    return tabulate(
        side.calls,
        Column("total_ns", priority=1),
        Column("share", priority=2),
        Column("instances", heading="calls", priority=3),
        Column("mean_ns", priority=5),
        Column("median_ns", priority=6),
        Column("min_ns", priority=7),
        Column("max_ns", priority=8),
        Column("std_ns", priority=9),
        Column("name", priority=4, is_flexible=True),
        name="api",
        title="Calls of the runtime by the host: cuda_api_sum",
    )


def _rest(more_ns: int, outside_ns: int) -> list[dict[str, Cell]]:
    rows = {"(more)": more_ns, "in none": outside_ns}
    return [{"own_ns": ns, "name": name} for name, ns in rows.items() if ns]
