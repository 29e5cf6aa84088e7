"""Tables of the host, of an Nsight Systems recording, and of a watched command."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sysbench.core.formatting import counted
from sysbench.core.record.job import JobLine, JobLoader, JobRank, JobStep, JobWindow, WatchedJob
from sysbench.core.record.record import Kernels, Nsys
from sysbench.core.record.steps import (
    HostRange,
    HostSide,
    KernelSummary,
    MarkedSteps,
    NsysDevice,
    NsysFacts,
    NvtxRange,
    StepRow,
)
from sysbench.core.tables.kernel_tables import kernel_table
from sysbench.core.tables.table import (
    Cell,
    Column,
    Row,
    Table,
    attributes,
    columns_for,
    facts,
    tabulate,
)
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
        columns_for(
            StepRow,
            Column("step", lambda row: "outside" if row.number is None else row.number),
            Column("kind", lambda row: row.kind or None, is_optional=True),
            Column("tokens", is_optional=True, about="tokens of the step"),
            Column("requests", is_optional=True, about="requests that the step served"),
            Column("time_ns", "ns", about="time of the step's work, or of its marker"),
            Column("share", lambda row: row.ns / span_ns),
            "busy_ns",
            "communication_ns",
            *map(idle_column, causes),
            Column("unattributed_ns", about="busy time without a named event in the trace"),
            Column(
                "loading_ns",
                lambda row: row.loading_ns or None,
                is_optional=True,
                about="time spent waiting for the data loader",
            ),
            Column("kernels", heading=work),
            "host_ns",
            Column(
                "odd",
                lambda row: ODD if row.is_odd else None,
                is_optional=True,
                about="marks a step that differs from others of its kind",
            ),
            "name",
        ),
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
        notes.append(f"all other tables are of {marked.chosen_words}, per step")
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
        COLUMNS,
        name="annotations",
        title=f"{whose}: {_work(kernels)} of what was launched in them",
        further=_rest(side.more_ns, side.elsewhere_ns) if side.annotations else (),
    )


def functions_table(kernels: Kernels, side: HostSide) -> Table:
    """Python functions outside of torch that launched work, by first line."""
    return tabulate(
        side.functions,
        COLUMNS,
        name="python",
        title=f"Python functions by file and first line: {_work(kernels)} of what they launched",
        further=_rest(side.more_functions_ns, side.no_function_ns) if side.functions else (),
    )


def calls_table(side: HostSide) -> Table:
    """CUDA or HIP runtime and driver calls, as in ``cuda_api_sum``."""
    return tabulate(
        side.calls,
        columns_for(
            KernelSummary,
            Column("total_ns", priority=1),
            Column("share", priority=2),
            Column("instances", heading="calls", priority=3),
            Column("mean_ns", priority=5),
            Column("median_ns", priority=6),
            Column("min_ns", priority=7),
            Column("max_ns", priority=8),
            Column("std_ns", priority=9),
            Column("name", priority=4, is_flexible=True),
        ),
        name="api",
        title="Calls of the runtime by the host: cuda_api_sum",
    )


def _rest(more_ns: int, outside_ns: int) -> list[dict[str, Cell]]:
    rows = {"(more)": more_ns, "in none": outside_ns}
    return [{"own_ns": ns, "name": name} for name, ns in rows.items() if ns]


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
        columns_for(
            NsysDevice,
            "device",
            "name",
            Column("kernels", priority=5),
            Column("copies", priority=6, about="copies and fills"),
            Column("span_ns", priority=1),
            Column("busy_ns", priority=2),
            Column("summed_ns", priority=8, about="sum of kernel times; overlaps count repeatedly"),
            Column(
                "busy_with_copies_ns", priority=7, about="time in which a kernel, copy or fill ran"
            ),
            Column("communication_ns", priority=4),
            Column("exposed_communication_ns", priority=3),
        ),
        name="nsys-devices",
        title="Devices of the export: times of kernels, overlaps counted once but for summed",
    )


def summary_table(rows: Sequence[KernelSummary], *, name: str, title: str) -> Table:
    """Times by name; shares add up to one."""
    return tabulate(
        rows,
        columns_for(
            KernelSummary,
            Column("total_ns", priority=1),
            Column("share", priority=2),
            Column("instances", priority=3),
            Column("mean_ns", priority=5),
            Column("median_ns", priority=6),
            Column("min_ns", priority=7),
            Column("max_ns", priority=8),
            Column("std_ns", priority=9),
            Column("name", priority=4, is_flexible=True, is_kernel=True),
        ),
        name=name,
        title=title,
    )


def range_table(nsys: NsysFacts) -> Table:
    """NVTX ranges by projected time, then those in which only other threads launched work."""
    nvtx = nsys.nvtx
    alike = ", the calls of an operator as one" if nvtx.folded else ""
    return tabulate(
        nvtx.folded or (*nvtx.rows, *nvtx.elsewhere),
        columns_for(
            NvtxRange,
            Column("projected_ns", priority=1, about="from its first GPU work to its last, summed"),
            Column("range_ns", priority=7, about="time of the range on the host"),
            Column("instances", priority=2),
            Column("operations", priority=6, about="work items launched by its own thread"),
            Column("kernels", priority=4),
            Column("kernel_ns", priority=5, about="sum of its kernel times"),
            Column("process_kernels", priority=8, about="kernels of any thread in that time"),
            Column(
                "process_kernel_ns", priority=9, about="time of kernels of any thread in that time"
            ),
            Column("range", priority=3, is_flexible=True, about="text of the NVTX range"),
            Column("style", priority=10, about="push and pop, or start and end"),
        ),
        name="nvtx",
        title="NVTX ranges: their work on the GPU, from its first to its last "
        f"(nvtx_gpu_proj_sum{alike}), and the kernels of all threads in that time",
    )


def job_tables(job: WatchedJob) -> list[Table]:
    """Return all tables in reading order; some may be empty."""
    return [
        job_table(job),
        job_ranks_table(job),
        loaders_table(job),
        windows_table(job),
        job_steps_table(job),
        job_lines_table(job),
    ]


def job_table(job: WatchedJob) -> Table:
    values: dict[str, Cell] = {
        "exit_code": job.exit_code,
        "wall_ms": job.wall_ms,
        **attributes(job, "world_size", "total_steps", "warmup_steps", "input_share"),
    }
    return facts("job", "The command", values, job.missing)


def job_ranks_table(job: WatchedJob) -> Table:
    return tabulate(
        job.ranks,
        columns_for(
            JobRank,
            "rank",
            Column("steps", about="steps that the process ran"),
            Column("median_ms", about="median wall time of its steps after the warm-up"),
            "device",
            Column("program", about="script of the process"),
            Column("pid", about="its process id"),
            Column("host", about="host on which it runs"),
            Column("torch", about="its version of torch"),
            Column("problem", about="why it was not recorded whole", is_optional=True),
            Column(
                "communication_ms",
                about="median time of a step in which it waited for collectives; the rank that "
                "the others wait for has the least",
                is_optional=True,
            ),
        ),
        name="job-ranks",
        title="Processes that ran steps",
    )


def loaders_table(job: WatchedJob) -> Table:
    return tabulate(
        job.loaders,
        columns_for(
            JobLoader,
            "rank",
            Column("place", about="line that iterates over the loader"),
            Column("workers", about="processes that load; 0 is the training process itself"),
            Column("waits", about="batches that the process waited for"),
            Column("input_ms", about="time that it waited for them"),
        ),
        name="job-loaders",
        title="Loaders, the longest wait first",
    )


def windows_table(job: WatchedJob) -> Table:
    return tabulate(
        job.windows,
        columns_for(
            JobWindow,
            "rank",
            Column("step", about="first traced step"),
            Column("count", about="traced steps"),
            Column("cost_ms", about="time that tracing or counting added to the command"),
            Column("trace", about="trace or count in the run's folder timing/marks"),
        ),
        name="job-windows",
        title="Steps that were traced, or whose memory was counted",
    )


def job_steps_table(job: WatchedJob) -> Table:
    return tabulate(
        job.steps,
        columns_for(
            JobStep,
            "step",
            "rank",
            Column("wall_ms", about="from the end of the step before it to its end"),
            Column("input_ms", about="waiting for a DataLoader"),
            Column("forward_ms", about="outermost module, with gradients"),
            Column("backward_ms", about="backward passes"),
            Column("optimizer_ms", about="optimizer steps"),
            Column("evaluation_ms", about="outermost module, without gradients"),
            Column("other_ms", about="the rest of the step"),
            "allocated_bytes",
            "peak_bytes",
            "reserved_bytes",
            Column("tokens", about="tokens of its inputs"),
            Column("samples", about="samples of its inputs"),
            Column("micro_batches", about="backward passes before the optimizer step"),
            Column("traced", about="whether a profiler slowed it down"),
            Column("skipped", about="whether a gradient scaler held the optimizer back"),
            Column(
                "communication_ms",
                about="waiting for collectives: in Work.wait, and in a backward after its own "
                "last gradient",
                is_optional=True,
            ),
        ),
        name="job-steps",
        title="Steps: a step is from the end of one optimizer step to the end of the next",
    )


def job_lines_table(job: WatchedJob) -> Table:
    """Lines of the first rank."""
    return tabulate(
        job.hosts[0].lines if job.hosts else [],
        columns_for(
            JobLine,
            Column("place", about="line of the program that the main thread had reached"),
            Column("share", about="share of the samples, taken some twenty times a second"),
            Column("samples", about="samples at that line, after the warm-up"),
            Column("phase", about="part of the step"),
            Column("text", about="expression that ran"),
            Column("callee", about="function of a package that it had called", is_optional=True),
            Column("kind", about="what torch did there, if it is known", is_optional=True),
        ),
        name="job-lines",
        title="Lines of the program, most time first; sampled outside of traced steps",
    )
