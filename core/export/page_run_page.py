"""A run as one HTML page: findings, timeline, ledger, trees, tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from sysbench.core.colours import HUES, look_of
from sysbench.core.compare.rounds import inside, middle
from sysbench.core.export.page_document import (
    branch,
    document,
    memory_chart,
    section,
    steps_chart,
    table,
    tag,
    text,
)
from sysbench.core.formatting import format_bytes, milliseconds, percent
from sysbench.core.record.record import Finding, Memory, ModuleMemory, Record
from sysbench.core.tables.context import headline
from sysbench.core.tables.kernel_tables import top_kernels
from sysbench.core.tables.memory_tables import peak_place
from sysbench.core.tables.overview import Role, overview, overview_lines
from sysbench.core.tables.table import Table
from sysbench.core.tables.timing_tables import known_words
from sysbench.core.tables.trust import trust_lines
from sysbench.core.trace.module_tree import TreeNode

KERNEL_ROWS = 200
OVERVIEW_WIDTH = 120
OPEN_LEVELS = 3
INSIDE = ("findings", "modules", "tree")
"""Tables that the page shows in another form."""


def run_page(record: Record, tables: Sequence[Table], tree: TreeNode | None = None) -> str:
    """Make a self-contained page of a run; the tree has folded layers."""
    first, *further = headline(record)
    figures = " · ".join(run_figures(record))
    stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.created_ns / 1e9))
    began = tag("time", text(f"{stamp} UTC"), datetime=f"{stamp.replace(' ', 'T')}Z")
    head = "".join(
        (
            tag("h1", text(first)),
            tag("p", tag("b", text(figures))) if figures else "",
            *(tag("p", text(line), class_="quiet") for line in further),
            tag("p", "started ", began, class_="quiet"),
        )
    )
    name = str(record.spec.get("model") or record.spec.get("workload") or record.id)
    title = " · ".join(filter(None, (name, figures, "sysbench-tui")))
    about = "; ".join(filter(None, (*further[:2], figures, f"started {stamp} UTC")))
    return document(title, head, dict(_sections(record, tables, tree)), about)


def run_figures(record: Record) -> Iterator[str]:
    timing, memory = record.timing, record.memory
    if timing is not None:
        width = f" ±{percent(timing.step.half_width)}" if timing.step.half_width else ""
        whole = timing.whole_words
        yield f"{milliseconds(timing.step.median_ms)} {whole}{width}, {known_words(timing)}"
    if memory is not None:
        yield f"peak {format_bytes(memory.peak_allocated_bytes)}"


def file_page(
    title: str, about: str, record: Record, tables: Sequence[Table], tree: TreeNode | None = None
) -> str:
    """Make the page of an imported file, whose record has an empty spec, like `run_page`."""
    head = tag("h1", text(title)) + tag("p", text(about), class_="quiet")
    return document(title, head, dict(_sections(record, tables, tree)))


def _sections(
    record: Record, tables: Sequence[Table], tree: TreeNode | None
) -> Iterator[tuple[str, str]]:
    yield "overview", section("Overview", _overview(record), anchor="overview")
    yield "findings", section("What was found", *map(_finding, record.findings), anchor="findings")
    lines = [
        tag("p", tag("b", text(name)), " ", text(statement))
        for name, statement in trust_lines(record)
    ]
    yield "trust", section("What the numbers include", *lines, anchor="trust")
    if record.timing:
        chart = steps_chart(record.timing.samples_ms, inside(record.timing).median_ms)
        middle_round = middle(record.timing.rounds)
        of_round = f" of round {middle_round.index}" if middle_round else ""
        title = f"Steps{of_round}, and their median"
        yield "step-times", section(title, chart, anchor="step-times")
    if record.memory:
        yield "timeline", _memory(record.memory)
        if record.memory.modules:
            yield "modules", _modules(record.memory.modules)
    if tree is not None:
        title = "The traced step: model, layer, module, operator, kernel"
        yield "tree", section(title, _time_branch(tree, tree.inclusive_ns), anchor="tree")
    for content in tables:
        if content.name not in INSIDE:
            if content.name == "kernels" and record.kernels:
                content = top_kernels(record.kernels, KERNEL_ROWS, placed=not record.spec)
            yield content.name, section(content.title, table(content), anchor=content.name)


def _overview(record: Record) -> str:
    lines = (
        "".join(_span(*span) for span in line)
        for line in overview_lines(overview(record), OVERVIEW_WIDTH)
    )
    return tag("pre", "\n".join(lines), class_="overview")


def _span(words: str, role: Role, look: str) -> str:
    if role == "bar":
        hue = HUES[look_of(look).hue]
        return tag("span", text(words), style=f"color:light-dark({hue.light}, {hue.dark})")
    return tag("span", text(words), class_=role) if role else text(words)


def _finding(finding: Finding) -> str:
    return tag(
        "div",
        tag("p", tag("b", text(f"{finding.severity}: {finding.verdict}"))),
        *(
            tag("p", f"{name}: ", text(words))
            for name, words in (("Why", finding.why), ("Next", finding.next))
            if words
        ),
        class_=f"finding {finding.severity}",
    )


def _memory(memory: Memory) -> str:
    peak = format_bytes(memory.peak_allocated_bytes)
    line = tag(
        "p",
        f"{'Allocated' if memory.is_state else 'Peak'} {peak} "
        f"({memory.peak_allocated_bytes:,} bytes) {text(peak_place(memory))}".rstrip(),
        id="peak",
        data_bytes=memory.peak_allocated_bytes,
    )
    return section("Live bytes", line, memory_chart(memory.timeline), anchor="timeline")


def _modules(rows: Sequence[ModuleMemory]) -> str:
    """List modules by path, largest first, children's bytes included."""
    below: dict[str, list[ModuleMemory]] = {}
    paths = {row.module for row in rows}
    root = rows[0].module
    for row in rows[1:]:
        parent = row.module.rpartition(".")[0]
        below.setdefault(parent if parent in paths else root, []).append(row)
    total_bytes = _total_bytes(rows[0]) or 1
    lines = _module_branch(rows[0], below, total_bytes)
    words = tag("p", "parameters · gradients · optimizer state · saved activations", class_="quiet")
    return section("Memory by module", words, lines, anchor="modules")


def _total_bytes(row: ModuleMemory) -> int:
    return row.parameter_bytes + row.gradient_bytes + row.optimizer_bytes + row.activation_bytes


def _module_branch(
    row: ModuleMemory, below: Mapping[str, list[ModuleMemory]], total_bytes: int, depth: int = 0
) -> str:
    children = sorted(below.get(row.module, ()), key=_total_bytes, reverse=True)
    parts = (row.parameter_bytes, row.gradient_bytes, row.optimizer_bytes, row.activation_bytes)
    return branch(
        row.module,
        [" · ".join(map(format_bytes, parts))],
        _total_bytes(row) / total_bytes,
        *(_module_branch(child, below, total_bytes, depth + 1) for child in children),
        is_open=depth < OPEN_LEVELS,
    )


def _time_branch(node: TreeNode, whole_ns: float, depth: int = 0) -> str:
    share = node.inclusive_ns / whole_ns if whole_ns else 0.0
    return branch(
        node.name,
        [f"{node.inclusive_ns / 1e6:.3f} ms", f"{percent(share)}"],
        share,
        *(_time_branch(child, whole_ns, depth + 1) for child in node.children),
        is_open=depth < OPEN_LEVELS,
    )
