"""Table of the steps that a file of others marks."""

from __future__ import annotations

from sysbench.core.record.steps import MarkedSteps, StepRow
from sysbench.core.tables.table import Column, Table, fields_of, tabulate

ODD = "odd"
"""Mark of a step unlike the others of its kind."""


def steps_table(marked: MarkedSteps) -> Table:
    """Every step, then what lies outside of them: each column of times adds up to the span's."""
    rows = [*marked.rows, marked.outside]
    causes = dict.fromkeys(cause for row in rows for cause, ns in row.idle.items() if ns)

    def idle_column(cause: str) -> Column[StepRow]:
        return Column(f"{cause}_ns", lambda row: row.idle.get(cause, 0), heading=cause)

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
