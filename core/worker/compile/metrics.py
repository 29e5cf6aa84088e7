"""Torch.compile's records, decoded: seconds by stage, breaks, recompiles, eager parts.

Dynamo keeps one record per compilation, of forward frames and of backward graphs. A field
that a version of torch lacks counts as 0.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sysbench.core.formatting import short_path
from sysbench.core.record.compile import Cause, EagerPart, GraphBreak, Recompile

DISABLING = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
LIMITS = ("recompile limit exceeded", "recompile_limit reached")
"""What dynamo says of a function that it gives up, the second in torch 2.9."""
ELSEWHERE = "another function"

Metric = Any
"""A ``torch._dynamo.utils.CompilationMetrics``."""


def parts_seconds(metrics: Sequence[Metric], loading_seconds: float) -> dict[str, float]:
    """Seconds of each stage without those inside it; they add up to all compilations.

    ``dynamo`` traces, ``aot`` makes the backward graph and its partition, ``inductor`` lowers
    and writes code, ``backend`` loads it: the C++ compiler or Triton, or their cache.

    Args:
        loading_seconds: Seconds of loading generated code, all graphs together.
    """
    # Dynamo measures the stages by separate timers: clamp each to the stage that contains it, so
    # that no difference is negative.
    compilation = _total(metrics, "duration_us")
    aot = _total(metrics, "aot_autograd_cumulative_compile_time_us")
    aot = min(aot + _total(metrics, "backward_cumulative_compile_time_us"), compilation)
    backend = min(loading_seconds, aot)
    inductor = _total(metrics, "inductor_cumulative_compile_time_us")
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
        (first_line(reason.reason), *_innermost(reason.user_stack))
        for reason in reasons
        if reason.graph_break
    )
    return [
        GraphBreak(reason=reason, place=place, code=code, count=count)
        for (reason, place, code), count in counts.items()
    ]


def _innermost(stack: Sequence[traceback.FrameSummary]) -> tuple[str, str]:
    """Place and code of the innermost line that is not torch's own."""
    for frame in reversed(stack):
        if f"{os.sep}torch{os.sep}" not in frame.filename:
            return _place(frame.filename, frame.lineno, frame.name), (frame.line or "").strip()
    return "", ""


def recompiles(metrics: Sequence[Metric]) -> list[Recompile]:
    """Compilations of a frame that had been compiled before, with the guard that failed."""
    return [
        Recompile(place=_frame(metric, metrics), guard=_without_id(metric.recompile_reason))
        for metric in metrics
        if getattr(metric, "recompile_reason", None) and not metric.fail_type
    ]


def eager_parts(
    metrics: Sequence[Metric], breaks: Sequence[GraphBreak], graphs: int, *, skipped: int = 0
) -> list[EagerPart]:
    """All that ran eagerly, each with its reason; none if everything ran compiled.

    Args:
        skipped: Frames that were seen and not compiled, with or without a recorded reason.
    """
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
    return EagerPart(cause="nothing-compiled", place="", reason="nothing was given to the compiler")


def _failure(metric: Metric, metrics: Sequence[Metric]) -> EagerPart:
    reason = first_line(metric.fail_reason or metric.fail_type)
    cause: Cause = "unsupported" if metric.fail_type == "Unsupported" else "failed"
    if any(limit in reason for limit in LIMITS):
        cause = "recompile-limit"
        if guard := getattr(metric, "recompile_reason", None):
            reason = f"{reason}; last: {_without_id(guard)}"
    elif cause == "failed":
        reason = f"{metric.fail_type}: {reason}"
    return EagerPart(cause=cause, place=_frame(metric, metrics), reason=reason)


def _frame(metric: Metric, metrics: Sequence[Metric]) -> str:
    """Place of the compiled function; the record of a refused attempt has only its number."""
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
    number, colon, text = first_line(guard).partition(": ")
    return text if colon and "/" in number else first_line(guard)


def first_line(text: str) -> str:
    """First line of dynamo's long explanation."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("raised:"):  # of a backend: the exception follows
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else ""
