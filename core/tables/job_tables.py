"""Tables of a watched command: its processes, loaders and steps."""

from __future__ import annotations

from sysbench.core.record.job import WatchedJob
from sysbench.core.tables.table import Cell, Column, Table, attributes, facts, tabulate


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
        "rank",
        Column("steps", about="steps that the process ran"),
        Column("median_ms", about="median wall time of its untraced steps after the warm-up"),
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
        name="job-ranks",
        title="Processes that ran steps",
    )


def loaders_table(job: WatchedJob) -> Table:
    return tabulate(
        job.loaders,
        "rank",
        Column("place", about="line that iterates over the loader"),
        Column("workers", about="processes that load; 0 is the training process itself"),
        Column("waits", about="batches that the process waited for"),
        Column("input_ms", about="time that it waited for them"),
        name="job-loaders",
        title="Loaders, the longest wait first",
    )


def windows_table(job: WatchedJob) -> Table:
    return tabulate(
        job.windows,
        "rank",
        Column("step", about="first traced step"),
        Column("count", about="traced steps"),
        Column("cost_ms", about="time that tracing or counting added to the command"),
        Column("trace", about="trace or count in the run's folder timing/marks"),
        name="job-windows",
        title="Steps that were traced, or whose memory was counted",
    )


def job_steps_table(job: WatchedJob) -> Table:
    return tabulate(
        job.steps,
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
        Column("peak_bytes", about="largest number of allocated bytes of the process so far"),
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
        name="job-steps",
        title="Steps: each begins when the one before ends, and ends with its last optimizer step",
    )


def job_lines_table(job: WatchedJob) -> Table:
    """Lines of the first rank."""
    return tabulate(
        job.hosts[0].lines if job.hosts else [],
        Column("place", about="line of the program that the main thread had reached"),
        Column(
            "share", about="share of the samples: some twenty a second, four after the first 1,500"
        ),
        Column("samples", about="samples at that line, after the warm-up"),
        Column("phase", about="part of the step"),
        Column("text", about="expression that ran"),
        Column("callee", about="function of a package that it had called", is_optional=True),
        Column("kind", about="what torch did there, if it is known", is_optional=True),
        name="job-lines",
        title="Lines of the program, most samples first; sampled outside of traced steps",
    )
