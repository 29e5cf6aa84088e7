"""How much of a traced step the kernel table explains, eager, compiled, and by attention kernel."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial

from sysbench.core import Record, RunSpec, run
from sysbench.core.record.environment import sdpa_kernel
from sysbench.core.record.record import Kernels
from tests.gpu.stages.stage import Bench, Row, header, line

SECONDS_A_ROW = 20.0
MOST_NAMES = 12
CALLS = ("cuda_runtime", "cuda_driver")


def specs(bench: Bench) -> Iterator[tuple[str, RunSpec]]:
    """What is traced, by the words of its row."""
    model = "tiny" if bench.is_quick else "cs336-2025/small"
    plain = RunSpec(model=model, device=bench.device, precision="bf16")
    yield "naive", plain
    if bench.is_quick:
        return
    for attention in ("sdpa", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient"):
        yield attention, plain.changed(attention=attention)
    yield "sdpa, fp32", plain.changed(attention="sdpa", precision="fp32")
    yield "sdpa, tf32", plain.changed(attention="sdpa", precision="tf32")
    for attention in ("sdpa", "naive"):
        for mode in ("default", "reduce-overhead"):
            yield f"{attention}, compiled {mode}", plain.changed(attention=attention, compile=mode)
    yield "flex", plain.changed(attention="flex")


def lines(bench: Bench) -> Iterator[str]:
    """The calls that launch, a row a spec, and the names that no rule knows."""
    yield from _calls(bench)
    yield ""
    yield "bf16 train unless said otherwise. Launches, kernels, dropped and unlinked are counts"
    yield "over all traced steps; traced is the traced step over the bare one."
    yield ""
    columns = ("step", "source", "sdpa", "launches", "kernels", "dropped", "unlinked", "explained")
    yield from header(*columns, "with module", "other", "traced", "breaks, recompiles")
    names: Counter[str] = Counter()
    for words, spec in specs(bench):
        if bench.seconds_left < SECONDS_A_ROW:
            yield line([words, "not traced: no time left", *[""] * 10])
            continue
        row = bench.once(words, partial(_row, bench, words, spec))
        names.update(json.loads(row[-1]))
        yield line(row[:-1])
    yield ""
    yield f"Kernels of no known category: {len(names)}"
    yield from (f"- `{name[:160]}`" for name, _ in names.most_common(MOST_NAMES))


def _row(bench: Bench, words: str, spec: RunSpec) -> Row:
    """The cells of a row, and as the last one its kernels without category as JSON."""
    record = run(spec, ["timing", "trace"]).record
    kernels = record.kernels
    if kernels is None:
        failed = next(one for one in record.passes if one.outcome != "finished")
        return [words, f"{failed.name} {failed.outcome}: {failed.detail}", *[""] * 10, "[]"]
    coverage = kernels.coverage
    return [
        words,
        kernels.source,
        sdpa_kernel(record.environment) or "",
        *map(str, (coverage.launches, coverage.kernels, coverage.dropped, coverage.unlinked)),
        f"{coverage.explained:.2%}",
        f"{coverage.with_module:.2%}",
        bench.time(sum(row.share for row in kernels.rows if row.category == "other"), "{:.2%}"),
        bench.time(kernels.perturbation),
        _compiled(record),
        json.dumps(_unknown(kernels)),
    ]


def _compiled(record: Record) -> str:
    compiled = record.compile
    if compiled is None:
        return ""
    fell_back = ", fell back" if compiled.fell_back else ""
    return f"{sum(compiled.graph_breaks.values())}, {compiled.recompiles}{fell_back}"


def _unknown(kernels: Kernels) -> list[str]:
    return sorted({row.name for row in kernels.rows if row.category == "other"})


def _calls(bench: Bench) -> Iterator[str]:
    """The calls of one small trace by name and CUPTI's id, and the trace itself."""
    spec = RunSpec(model="tiny", device=bench.device, precision="bf16").changed(layers=1)
    result = run(spec, ["trace"])
    path = result.directory.trace_path
    if not path.is_file():
        yield f"No trace was written: {result.record.passes[0].detail}"
        return
    data = path.read_bytes()
    counts = Counter(
        (event["cat"], event["name"], str(event.get("args", {}).get("cbid", "")))
        for event in json.loads(gzip.decompress(data))["traceEvents"]
        if event.get("cat") in CALLS
    )
    yield from header("calls of one layer", "name", "cbid", "count")
    for (category, name, cbid), count in counts.most_common(MOST_NAMES):
        yield line([category, name, cbid, str(count)])
    yield ""
    yield bench.keep(data, path.name)
