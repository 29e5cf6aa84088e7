"""Application of torch.compile by the spec, and the description of the compilation."""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from torch import nn

from sysbench.core.errors import SpecError
from sysbench.core.formatting import short_path
from sysbench.core.record.compile import Cause, EagerPart, GraphBreak, Recompile
from sysbench.core.record.record import Compile
from sysbench.core.spec.spec import RunSpec

DISABLING = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
LIMITS = ("recompile limit exceeded", "recompile_limit reached")
"""Messages of dynamo when it gives up a function; the second one is of torch 2.9."""
ELSEWHERE = "another function"

STAGES = {
    "tracing": "dynamo_cumulative_compile_time_us",
    "autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
}
"""Dynamo's timer of each stage, which contains the stages after it."""

Metric = Any
"""A ``torch._dynamo.utils.CompilationMetrics``."""


def parts_seconds(metrics: Sequence[Metric], loading_seconds: float) -> dict[str, float]:
    """Exclusive seconds of each compile stage; they add up to the compile time.

    ``dynamo`` traces, ``aot`` builds and partitions the backward graph, ``inductor`` generates
    code, ``backend`` loads it (C++ compiler, Triton, or their cache).
    """
    # Dynamo measures the stages by separate timers: clamp each to the stage that contains it, so
    # that no difference is negative.
    compilation = _total(metrics, "duration_us")
    aot = _total(metrics, STAGES["autograd"])
    aot = min(aot + _total(metrics, "backward_cumulative_compile_time_us"), compilation)
    backend = min(loading_seconds, aot)
    inductor = _total(metrics, STAGES["inductor"])
    inductor = min(max(inductor, backend), aot)  # with a warm cache only loading is left of it
    return {
        "dynamo": compilation - aot,
        "aot": aot - inductor,
        "inductor": inductor - backend,
        "backend": backend,
    }


def _total(metrics: Sequence[Metric], name: str) -> float:
    return sum(getattr(metric, name, None) or 0 for metric in metrics) / 1e6


def graph_breaks(reasons: Iterable[Any]) -> list[GraphBreak]:
    """Dynamo's ``graph_break_reasons``, grouped by place and reason."""
    counts = Counter(
        (_first_line(reason.reason), *_innermost(reason.user_stack))
        for reason in reasons
        if reason.graph_break
    )
    return [
        GraphBreak(reason=reason, place=place, code=code, count=count)
        for (reason, place, code), count in counts.items()
    ]


def _innermost(stack: Sequence[traceback.FrameSummary]) -> tuple[str, str]:
    for frame in reversed(stack):
        if f"{os.sep}torch{os.sep}" not in frame.filename:
            return _place(frame.filename, frame.lineno, frame.name), (frame.line or "").strip()
    return "", ""


def recompiles(metrics: Sequence[Metric]) -> list[Recompile]:
    """Recompilations, with the guard that failed."""
    return [
        Recompile(place=_frame(metric, metrics), guard=_without_id(metric.recompile_reason))
        for metric in metrics
        if getattr(metric, "recompile_reason", None) and not metric.fail_type
    ]


def eager_parts(
    metrics: Sequence[Metric], breaks: Sequence[GraphBreak], graphs: int, *, skipped: int = 0
) -> list[EagerPart]:
    """Everything that ran eagerly, with its reason; empty if all code was compiled."""
    if not metrics and not graphs:
        return [_nothing_compiled()]
    parts = [_failure(metric, metrics) for metric in metrics if metric.fail_type]
    parts += [
        EagerPart(cause="graph-break", place=graph_break.place, reason=graph_break.reason)
        for graph_break in breaks
    ]
    if not graphs and not parts:
        parts.append(EagerPart(cause="nothing-compiled", place="", reason="no graph was made"))
    if skipped and not parts:
        reason = f"{skipped} functions were not compiled, no reason was given"
        parts.append(EagerPart(cause="unsupported", place="", reason=reason))
    return list(dict.fromkeys(parts))


def _nothing_compiled() -> EagerPart:
    variable = next((name for name in DISABLING if os.environ.get(name) == "1"), None)
    if variable:
        return EagerPart(cause="disabled", place="", reason=f"{variable} is set to 1")
    return EagerPart(cause="nothing-compiled", place="", reason="the compiler was never called")


def _failure(metric: Metric, metrics: Sequence[Metric]) -> EagerPart:
    reason = _first_line(metric.fail_reason or metric.fail_type)
    cause: Cause = "unsupported" if metric.fail_type == "Unsupported" else "failed"
    if any(limit in reason for limit in LIMITS):
        cause = "recompile-limit"
        if guard := getattr(metric, "recompile_reason", None):
            reason = f"{reason}; last: {_without_id(guard)}"
    elif cause == "failed":
        reason = f"{metric.fail_type}: {reason}"
    return EagerPart(cause=cause, place=_frame(metric, metrics), reason=reason)


def _frame(metric: Metric, metrics: Sequence[Metric]) -> str:
    """Place of the compiled function; a refused attempt has only a number."""
    frame = str(metric.compile_id or "").partition("/")[0]
    same_frame = (
        other for other in metrics if str(other.compile_id or "").partition("/")[0] == frame
    )
    named = next((record for record in (metric, *same_frame) if record.co_filename), None)
    if named is None:
        return ELSEWHERE
    return _place(named.co_filename, named.co_firstlineno, named.co_name)


def _place(file: str, line: int | None, function: str) -> str:
    return f"{short_path(file)}:{line} in {function}"


def _without_id(guard: str) -> str:
    """``0/1: tensor 'x' size mismatch …`` without the number of the compilation."""
    number, colon, text = _first_line(guard).partition(": ")
    return text if colon and "/" in number else _first_line(guard)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("raised:"):  # of a backend: the exception follows
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else ""


DYNAMIC = {"auto": None, "on": True, "off": False}
LOADING = "PyCodeCache.load_by_key_path"
RECORDS_KEPT = 4096
"""Limit of compilation records; dynamo's default is 64."""


def compiled(spec: RunSpec, model: nn.Module) -> nn.Module:
    """Wrap the model, or its blocks, in torch.compile; the first step compiles."""
    if spec.compile == "off":
        return model
    from torch._dynamo import utils  # lazy: torch's compiler takes a second

    if hasattr(utils, "set_compilation_metrics_limit"):
        utils.set_compilation_metrics_limit(RECORDS_KEPT)
    # Only inductor has modes; other backends reject the argument.
    mode = spec.compile if spec.compile_backend == "inductor" else None
    for target in compiled_modules(spec, model):
        target.compile(
            fullgraph=spec.compile_fullgraph,
            dynamic=DYNAMIC[spec.compile_dynamic],
            backend=spec.compile_backend,
            mode=mode,
        )
    return model


def compiled_modules(spec: RunSpec, model: nn.Module) -> list[nn.Module]:
    """Modules that are compiled as one graph each: the blocks, or the model.

    Raises:
        SpecError: The model has no blocks.
    """
    modules = compiled_blocks(model) if spec.compile_scope == "block" else [model]
    if not modules:
        allowed = "whole: this model has no list of blocks of one class"
        raise SpecError("compile_scope", spec.compile_scope, allowed)
    return modules


def compiled_blocks(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one class; empty if no list has two."""
    lists = [
        list(module)
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 0
    ]
    alike = [one for one in lists if len({type(block) for block in one}) == 1]
    return max(alike, key=len, default=[])


def describe_compilation(spec: RunSpec, first_step_ms: float) -> Compile:
    """The compile block of this process, from torch.compile's counters."""
    from torch._dynamo.utils import (  # lazy: torch's compiler takes a second
        compilation_time_metrics,
        counters,
        get_compilation_metrics,
        graph_break_reasons,
    )

    metrics = get_compilation_metrics()
    graphs = int(counters["stats"]["unique_graphs"])
    breaks = graph_breaks(graph_break_reasons)
    frames = counters["frames"]
    eager = eager_parts(metrics, breaks, graphs, skipped=frames["total"] - frames["ok"])
    again = recompiles(metrics)
    seconds = _total(metrics, "duration_us")
    hits, misses = _cache_use(counters)
    block = Compile(
        mode=spec.compile,
        backend=spec.compile_backend,
        scope=spec.compile_scope,
        first_step_ms=first_step_ms,
        compile_seconds=seconds,
        graphs=graphs,
        graph_breaks={
            _first_line(str(reason)): int(count)
            for reason, count in counters["graph_break"].items()
        },
        recompiles=len(again),
        fell_back=bool(eager),
        stages_seconds={
            name: seconds for name, key in STAGES.items() if (seconds := _total(metrics, key))
        },
        extent="none" if not graphs else "part" if eager else "whole",
        breaks=breaks,
        recompiled=again,
        eager_parts=eager,
        parts_seconds=parts_seconds(metrics, sum(compilation_time_metrics.get(LOADING, []))),
        cache_hits=hits,
        cache_misses=misses,
        cudagraph_skips=_cudagraph_skips(
            metrics,
            int(counters["inductor"]["cudagraph_skips"]),
            "no reason was given" if spec.on_cuda else "the device is not a CUDA device",
        ),
    )
    return _with_cache_state(spec, block)


def _cache_use(counters: Any) -> tuple[int | None, int | None]:
    """Hits and misses of Inductor's graph cache; None if it was not used."""
    inductor = counters["inductor"]
    hits, misses = int(inductor["fxgraph_cache_hit"]), int(inductor["fxgraph_cache_miss"])
    return (hits, misses) if hits or misses else (None, None)


def _cudagraph_skips(metrics: Any, count: int, otherwise: str) -> dict[str, int]:
    """Reasons why CUDA graphs were not captured, with counts."""
    reasons = [
        reason for metric in metrics if (reason := getattr(metric, "cudagraph_skip_reason", None))
    ]
    skips: dict[str, int] = {reason: reasons.count(reason) for reason in reasons}
    if count > len(reasons):
        skips[otherwise] = count - len(reasons)
    return skips


def _with_cache_state(spec: RunSpec, block: Compile) -> Compile:
    """Set the cold or warm compile seconds, depending on the state of the cache."""
    if spec.compile_cache == "cold":
        return msgspec.structs.replace(block, cold_seconds=block.compile_seconds)
    missing = {"cold_seconds": "the cache was not empty: --set compile_cache=cold measures both"}
    if block.cache_hits and not block.cache_misses:
        return msgspec.structs.replace(block, warm_seconds=block.compile_seconds, missing=missing)
    if block.cache_misses:
        reason = (
            f"{block.cache_misses} graphs were not in the cache yet: run again, "
            "or --set compile_cache=cold measures both"
        )
    else:
        reason = f"the backend {spec.compile_backend} has no cache"
    return msgspec.structs.replace(block, missing=missing | {"warm_seconds": reason})
