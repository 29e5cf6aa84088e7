"""The report of a run as lines: settings, findings, trust, then the tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from rich.cells import cell_len

from sysbench.core.colours import HUES, look_of
from sysbench.core.export.exports import EXPORTS
from sysbench.core.formatting import format_bytes
from sysbench.core.record.record import Finding, Kernels, Memory, Nsys, Record, Timing
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.tables.cells import heading, literal, one_figure
from sysbench.core.tables.compile_tables import compile_table, gaps_table
from sysbench.core.tables.context import headline
from sysbench.core.tables.kernel_tables import category_table, outlier_note, top_kernels
from sysbench.core.tables.layer_tables import layer_tables
from sysbench.core.tables.memory_tables import (
    card_table,
    devices_text,
    largest_table,
    ledger_table,
    peak_place,
    recording_notes,
)
from sysbench.core.tables.nsys_tables import clock_table, range_table
from sysbench.core.tables.numerics_tables import numerics_tables
from sysbench.core.tables.overview import Overview, Role, overview, overview_lines
from sysbench.core.tables.table import Cell, Table, is_number, select, with_column, with_total
from sysbench.core.tables.timing_tables import energy_words, rounds_table, timing_table
from sysbench.core.tables.trust import (
    coverage_warning,
    is_perturbed,
    perturbation_note,
    trust_lines,
)
from sysbench.core.trace.roofline import bandwidth_words
from sysbench.tui.commands.output import page_width, print_json, print_lines
from sysbench.tui.commands.text_lines import (
    Line,
    blank,
    flowing,
    labelled,
    note,
    picture_line,
    prose,
    shorten_line,
    table_lines,
    titled,
)

_CODES = {"finished": 0, "running": 0, "cancelled": 130}


def print_ending(run: RunDirectory, *, json: bool) -> int:
    """Print the record, or the report with the artifacts; return the exit code."""
    record = load_record(run)
    if json:
        print_json(record)
    else:
        print_lines(full_report(run, record, page_width()))
    return _CODES.get(record.status, 1)


def full_report(run: RunDirectory, record: Record, width: int) -> Iterator[Line]:
    yield from report_lines(record, width)
    # Never truncated, so that they can be copied.
    yield from titled(
        "Artifacts",
        ([(f"  {label:<12}", "dim"), (text, "")] for label, text in _exports(run, record)),
    )


def _exports(run: RunDirectory, record: Record) -> Iterator[tuple[str, str]]:
    command = f"sysbench-tui export {shlex.quote(run.id)}"
    yield "directory", str(run.path)
    for kind, export in EXPORTS.items():
        if export.offer and export.offer.applies(run, record):
            yield export.offer.label, f"{command} {kind:<12} # {export.offer.note}"


KERNEL_ROWS = 15
LARGEST_ROWS = 8
SEVERITY_STYLES = {
    "good": "bold green",
    "note": "bold",
    "warning": "bold yellow",
    "problem": "bold red",
}
OVERVIEW_WIDTH = 160
_MAX_BAR, _MIN_BAR = 20, 6
_LABELS = 12


def report_lines(record: Record, width: int) -> Iterator[Line]:
    shown = overview(record)
    yield from overview_section(shown, width)
    yield blank()
    yield from _headline(record, width)
    yield from findings_lines(shown.further, width)
    yield from _unfinished(record, width)
    trust = [
        line
        for name, text in trust_lines(record)
        for line in labelled(name, text, width, column=_LABELS)
    ]
    if trust:
        yield from titled("Trust", trust)
    if record.timing:
        yield from timing_section(record.timing, width)
    if record.kernels:
        yield from _top_kernels(record.kernels, width)
        for table in layer_tables(record):
            rows = table.rows[:KERNEL_ROWS]
            yield from full_table(msgspec.structs.replace(table, rows=rows), width)
    if record.nsys:
        if not record.kernels:
            yield from _top_kernels(record.nsys.kernels, width)
        yield from nsys_section(record.nsys, width)
    if record.memory:
        yield from memory_section(record.memory, width)
        if record.memory.largest:
            lines = _largest(record.memory, width)
            yield from titled("Largest allocations alive at the peak", lines)
    if record.numerics:
        for table in numerics_tables(record.numerics):
            yield from full_table(table, width)
    if record.compile:
        for table in (compile_table(record.compile), gaps_table(record.compile)):
            if table.rows:
                yield from full_table(table, width)


def overview_section(shown: Overview, width: int) -> Iterator[Line]:
    more = "details: --section findings"
    for spans in overview_lines(shown, min(width, OVERVIEW_WIDTH), more):
        line = [(picture_line(text), _span_style(role, look)) for text, role, look in spans]
        # Trailing blanks would show as a bar's colour.
        yield [(text, style) for text, style in line if text]


def _span_style(role: Role, look: str) -> str:
    if role == "bar":
        return HUES[look_of(look).hue].dark
    return {"strong": "bold", "quiet": "dim", "": ""}.get(role) or SEVERITY_STYLES.get(role, "")


def full_table(table: Table, width: int, drop: Sequence[str] = ()) -> Iterator[Line]:
    yield blank()
    yield from prose(literal(table.title), width, style="bold")
    yield from table_lines(table, width, drop=drop)


def findings_lines(findings: Iterable[Finding], width: int) -> Iterator[Line]:
    for finding in findings:
        verdict = f"{finding.severity.capitalize()}: {literal(finding.verdict)}"
        yield blank()
        yield from prose(verdict, width, hang=2, style=SEVERITY_STYLES[finding.severity])
        for label, text in (("why", finding.why), ("next", finding.next)):
            if text:
                yield from labelled(label, literal(text), width, column=6)


def timing_section(timing: Timing, width: int) -> Iterator[Line]:
    table = timing_table(timing)
    columns = table.columns[: table.columns.index("n") + 1]
    drop = ("max_ms", "min_ms", "std_ms", "mean_ms")
    yield from titled(table.title, table_lines(table, width, columns=columns, drop=drop))
    yield from note(_speed(timing), width)
    if timing.rounds:
        yield from rounds_section(timing, width)


def rounds_section(timing: Timing, width: int) -> Iterator[Line]:
    drop = ("experiment", "block", "side", "clock_reasons", "temperature_celsius")
    yield from full_table(rounds_table(timing), width, drop=drop)


def _top_kernels(kernels: Kernels, width: int) -> Iterator[Line]:
    table = top_kernels(kernels, KERNEL_ROWS)
    perturbed = perturbed_columns(kernels, table)
    yield from kernel_warnings(kernels, width)
    yield from titled(table.title, table_lines(table, width, total=True, perturbed=perturbed))
    yield from category_section(kernels, width)
    if why := kernels.missing.get("counted_flops"):
        yield from note([literal(f"FLOPs {why}")], width)


def kernel_warnings(kernels: Kernels, width: int) -> Iterator[Line]:
    for text in (coverage_warning(kernels), perturbation_note(kernels), outlier_note(kernels)):
        if text:
            yield blank()
            yield from prose(text, width, hang=2, style="bold yellow")


def perturbed_columns(kernels: Kernels, table: Table) -> list[str]:
    return [name for name in table.columns if name.endswith("_ns")] if is_perturbed(kernels) else []


def category_section(kernels: Kernels, width: int) -> Iterator[Line]:
    """Yield categories by phase, with bars if the width allows; they sum to the step."""
    table = category_table(kernels)
    phases = [name for name in table.columns if name.endswith("_ns") and name != "exclusive_ns"]
    phases.sort(key=lambda name: sum(filter(is_number, table.column(name))))
    rows = table_lines(
        with_total(table, "category", kernels.whole, table.columns[1:]),
        width,
        drop=("calls", *phases),
        total=True,
        perturbed=perturbed_columns(kernels, table),
    )
    used = max(sum(cell_len(text) for text, _ in line) for line in rows)
    cells = min(_MAX_BAR, width - used - 2)
    if cells >= _MIN_BAR:
        bars = ["", *(_bar(share, cells) for share in table.column("share")), ""]
        rows = [[*line, (f"  {bar}", "")] for line, bar in zip(rows, bars, strict=True)]
    yield from titled(table.title, rows)


def nsys_section(nsys: Nsys, width: int) -> Iterator[Line]:
    ranges = range_table(nsys)
    columns = ("projected_ns", "instances", "operations", "kernels", "kernel_ns", "range")
    shown = msgspec.structs.replace(ranges, rows=ranges.rows[:KERNEL_ROWS])
    if shown.rows:
        lines = table_lines(shown, width, columns=columns, drop=("operations", "kernels"))
        yield from titled("NVTX ranges with the most GPU time", lines)
        rest = len(ranges.rows) - len(shown.rows)
        if rest > 0:
            yield from note([f"{rest:,} more ranges: --section nsys"], width)
    yield from full_table(clock_table(nsys), width)


def memory_section(memory: Memory, width: int) -> Iterator[Line]:
    ledger = ledger_table(memory)
    numbers = tuple(name for name in ledger.columns if name != "name")
    rows = table_lines(
        with_total(ledger, "name", "allocated" if memory.is_state else "peak allocated", numbers),
        width,
        drop=[name for name in reversed(numbers) if name not in ("peak_bytes", "share")],
        total=True,
    )
    yield from titled(ledger.title, rows)
    yield from note(_totals(memory), width)
    if memory.card:
        table = card_table(memory)
        card = with_total(table, "name", "all", [name for name in table.columns if name != "name"])
        yield from titled(card.title, table_lines(card, width, total=True))


def _largest(memory: Memory, width: int) -> list[Line]:
    table = largest_table(memory)
    where = [str(stack).partition(" < ")[0] for stack in table.column("stack")]
    # Block sizes, if known, replace the module.
    names = ("bytes", "block_bytes", "category", "phase")
    if "block_bytes" not in table.columns:
        names = ("bytes", "category", "phase", "module")
    shown = with_column(select(table, names), "where", where)
    shown = msgspec.structs.replace(shown, rows=shown.rows[:LARGEST_ROWS])
    return table_lines(shown, width, drop=("phase", "module"))


def _headline(record: Record, width: int) -> Iterator[Line]:
    first, *others = headline(record)
    yield from prose(literal(first), width, hang=2, style="bold")
    for line in others:
        yield from flowing(literal(line).split(" · "), width, hang=2)


def _unfinished(record: Record, width: int) -> Iterator[Line]:
    for row in record.passes:
        if row.outcome == "finished":
            continue
        yield blank()
        yield from prose(f"{row.name} pass: {literal(row.detail)}", width, hang=2, style="bold red")
        for line in row.log_tail[-5:]:
            yield [("  | " + shorten_line(literal(line), width - 4), "dim")]


def _speed(timing: Timing) -> list[str]:
    parts = []
    if not timing.of_command:
        parts = [
            f"first step {timing.first_step_ms:,.2f} ms",
            f"{len(timing.warmup_ms)} warm-up steps",
        ]
    if timing.tokens_per_second is not None:
        parts.append(f"{timing.tokens_per_second:,.0f} tokens/s")
    if timing.tflops is not None:
        parts.append(f"{timing.tflops:.3g} TFLOP/s")
        parts.append(f"MFU {_figure('mfu', timing.mfu, timing.missing)}")
    if (decode := timing.decode) is not None:
        read = bandwidth_words(decode.weight_bytes, decode.cache_bytes)
        if decode.bytes_per_token:
            read += f" ({format_bytes(decode.bytes_per_token)} a token of a sequence)"
        parts.append(read)
        if decode.token_ms is not None:
            share = _figure("bandwidth_share", decode.bandwidth_share, timing.missing)
            parts.append(f"bandwidth share {share}")
    return [*parts, *energy_words(timing)]


def _totals(memory: Memory) -> list[str]:
    keys = (
        *("peak_reserved_bytes", "end_allocated_bytes", "driver_used_bytes"),
        *("first_step_peak_bytes", "predicted_peak_bytes"),
        *("predicted_allocated_bytes", "predicted_reserved_bytes"),
    )
    names = {} if memory.source != "cpu-profiler" else {"driver_used_bytes": "resident set"}
    if memory.is_state:
        names = {"peak_reserved_bytes": "reserved", "end_allocated_bytes": "allocated"}
    figures = (
        f"{names.get(key, heading(key))} {_figure(key, value, memory.missing)}"
        for key in keys
        if (value := getattr(memory, key)) is not None or key in memory.missing
    )
    phase = [f"peak {literal(peak_place(memory))}"] if memory.peak_phase else []
    return [*devices_text(memory), *phase, *figures, *recording_notes(memory)]


def _figure(key: str, value: float | None, missing: Mapping[str, str]) -> str:
    reason = missing.get(key) if value is None else None
    return one_figure(key, value) + (f" ({literal(reason)})" if reason else "")


def _bar(share: Cell, cells: int) -> str:
    return "█" * max(0, min(round(share * cells), cells)) if is_number(share) else ""
