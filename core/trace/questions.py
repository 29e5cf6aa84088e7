"""Common questions about a profile, answered from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import fsum
from typing import NamedTuple

from sysbench.core.formatting import milliseconds, percent, percent_of, shortened
from sysbench.core.record.record import KernelRow, Kernels, Record
from sysbench.core.spec.own_model import JOB
from sysbench.core.trace.attention_kernels import (
    Answer,
    Numbers,
    command_for,
    softmax_against_matmuls,
)
from sysbench.core.trace.module_tree import group_by

FORWARD = ("forward",)
FORWARD_BACKWARD = ("forward", "loss", "backward")
NOTABLE_SHARE = 0.02
MAX_NAMED = 5
GEMM_STEPS = ("inference", "forward+backward", "train")


class NamedTime(NamedTuple):
    name: str
    category: str
    ns: float
    calls: float


def questions_of(record: Record, others: Sequence[Record] = ()) -> list[Answer]:
    """Return the answers from a record; empty without kernels and for imported traces.

    ``others`` are runs of the same spec with other kinds of step, newest first, for phases that the
    record's step does not have.
    """
    kernels = record.kernels
    if kernels is None or not record.spec or record.spec.get("workload") == JOB:
        return []
    questions: list[Callable[[Record, Kernels, Sequence[Record]], Answer]]
    questions = [forward_time, longest_kernel, notable_kernels, gemm_shares]
    if record.spec.get("workload", "transformer") == "transformer":
        questions.append(softmax_against_matmuls)
    return [answer(record, kernels, others) for answer in questions]


def forward_time(record: Record, kernels: Kernels, others: Sequence[Record]) -> Answer:
    question = "Does tracing change the forward time?"
    traced_ns = kernels.phases_ns.get("forward")
    if traced_ns is None:
        return Answer(question=question, sentence="The trace has no forward phase.")
    numbers: Numbers = {"traced_forward_ms": traced_ns / 1e6}
    timing = record.timing
    if timing is None or "forward" not in timing.phases or not timing.phases["forward"].median_ms:
        sentence = (
            f"Forward takes {milliseconds(traced_ns / 1e6)} in the trace; the timing pass was not "
            "run."
        )
        return Answer(question=question, sentence=sentence, numbers=numbers)
    bare_ms = timing.phases["forward"].median_ms
    change = traced_ns / 1e6 / bare_ms - 1
    clock = "CUDA events" if timing.clock == "cuda-events" else "the host clock"
    numbers |= {"forward_ms": bare_ms, "over_bare": change, "clock": timing.clock}
    sentence = (
        f"Forward takes {milliseconds(bare_ms)} by {clock} without a profiler and "
        f"{milliseconds(traced_ns / 1e6)} in the trace ({100 * change:+.1f} %)."
    )
    if kernels.source == "kernels" and timing.wall_ms is not None:
        numbers |= {
            "span_ms": kernels.span_ns / 1e6,
            "busy_ms": kernels.busy_ns / 1e6,
            "wall_ms": timing.wall_ms,
        }
        sentence += (
            f" The whole traced step spans {milliseconds(kernels.span_ns / 1e6)} on the GPU, busy "
            f"for {milliseconds(kernels.busy_ns / 1e6)}; the untraced step takes "
            f"{milliseconds(timing.wall_ms)} of wall time."
        )
    elif kernels.source == "operators":
        sentence += " Without a GPU both are wall time."
    return Answer(question=question, sentence=sentence, numbers=numbers)


def longest_kernel(record: Record, kernels: Kernels, others: Sequence[Record]) -> Answer:
    noun = _noun(kernels)
    question = (
        f"Which {noun} takes the most time in forward, how often is it called, and is it the "
        "same in forward and backward together?"
    )
    forward = by_name(_in(kernels.rows, FORWARD))
    if not forward:
        return Answer(question=question, sentence=f"The trace has no {noun} in forward.")
    top, total_ns = forward[0], fsum(named.ns for named in forward)
    numbers: Numbers = {
        "name": top.name,
        "forward_ms": top.ns / 1e6,
        "forward_share": top.ns / total_ns if total_ns else 0.0,
        "forward_calls": top.calls,
    }
    sentence = (
        f"{shortened(top.name)}: {milliseconds(top.ns / 1e6)} of forward, "
        f"{percent_of(top.ns, total_ns)} of its {noun} time, in {top.calls:,.4g} calls."
    )
    source = next((run for run in (record, *others) if _has_backward(run)), None)
    if source is None or source.kernels is None:
        return Answer(
            question=question,
            sentence=f"{sentence} Forward and backward together were not measured.",
            numbers=numbers,
            rows=[top.name],
            commands=command_for(record, "forward+backward"),
        )
    both = by_name(_in(source.kernels.rows, FORWARD_BACKWARD))
    first, all_ns = both[0], fsum(named.ns for named in both)
    same = first.name == top.name
    numbers |= {
        "same": "yes" if same else "no",
        "both_name": first.name,
        "both_ms": first.ns / 1e6,
        "both_share": first.ns / all_ns if all_ns else 0.0,
        "both_calls": first.calls,
        "both_run": source.id,
    }
    word = "it is the same" if same else f"it is another, {shortened(first.name)}"
    sentence += (
        f" In forward and backward together {word}: {milliseconds(first.ns / 1e6)}, "
        f"{percent_of(first.ns, all_ns)}, in {first.calls:,.4g} calls."
    )
    rows = list(dict.fromkeys([top.name, first.name]))
    return Answer(question=question, sentence=sentence, numbers=numbers, rows=rows)


def notable_kernels(record: Record, kernels: Kernels, others: Sequence[Record]) -> Answer:
    noun = _noun(kernels)
    question = f"Which other {noun}s take much of forward?"
    forward = by_name(_in(kernels.rows, FORWARD))
    total_ns = fsum(named.ns for named in forward)
    rest = [named for named in forward if named.category != "gemm"]
    notable = [named for named in rest if named.ns >= NOTABLE_SHARE * total_ns > 0][:MAX_NAMED]
    small_ns = fsum(named.ns for named in rest) - fsum(named.ns for named in notable)
    if not notable:
        sentence = (
            f"None: no {noun} other than matrix products takes "
            f"{percent(NOTABLE_SHARE, 0)} of forward."
        )
    else:
        listed = ", ".join(
            f"{shortened(named.name)} {percent_of(named.ns, total_ns)} ({named.category})"
            for named in notable
        )
        count = len(rest) - len(notable)
        sentence = f"Other than matrix products: {listed}"
        sentence += f"; {count} more together {percent_of(small_ns, total_ns)}." if count else "."
    return Answer(
        question=question,
        sentence=sentence,
        numbers={named.name: named.ns / total_ns for named in notable},
        rows=[named.name for named in notable],
    )


def gemm_shares(record: Record, kernels: Kernels, others: Sequence[Record]) -> Answer:
    noun = _noun(kernels)
    numbers: Numbers = {}
    measured, absent, commands = [], [], []
    rows: set[str] = set()
    for step in GEMM_STEPS:
        source = _source_of(step, (record, *others))
        if source is None or source.kernels is None:
            absent.append(step)
            commands += command_for(record, step)
            continue
        members = source.kernels.rows
        if step == "forward+backward":
            members = _in(members, FORWARD_BACKWARD)
        total_ns = fsum(row.exclusive_ns for row in members)
        gemms = [row for row in members if row.category == "gemm"]
        gemm_ns = fsum(row.exclusive_ns for row in gemms)
        attention_ns = fsum(row.exclusive_ns for row in members if row.category == "attention")
        numbers |= {step: gemm_ns / total_ns if total_ns else 0.0, f"{step} run": source.id}
        text = f"{percent_of(gemm_ns, total_ns)} in {step}"
        if attention_ns:
            numbers[f"{step} fused attention"] = attention_ns / total_ns
            text += f" (and {percent_of(attention_ns, total_ns)} in fused attention)"
        measured.append(text)
        rows |= {row.name for row in gemms}
    sentence = (
        f"Of the {noun} time, {', '.join(measured)}." if measured else "No kind was measured."
    )
    if absent:
        sentence += f" Not measured: {', '.join(absent)}."
    return Answer(
        question="What share of the time do matrix products take in inference, in "
        "forward+backward and in a training step?",
        sentence=sentence,
        numbers=numbers,
        rows=sorted(rows),
        commands=commands,
    )


def by_name(rows: Iterable[KernelRow]) -> list[NamedTime]:
    times = [
        NamedTime(
            name,
            group[0].category,
            fsum(row.exclusive_ns for row in group),
            fsum(row.calls for row in group),
        )
        for name, group in group_by(rows, lambda row: row.name).items()
    ]
    return sorted(times, key=lambda named: -named.ns)


def _source_of(step: str, records: Iterable[Record]) -> Record | None:
    traced = [run for run in records if run.kernels is not None]
    exact = next((run for run in traced if run.spec["step"] == step), None)
    if exact is None and step == "forward+backward":
        return next((run for run in traced if _has_backward(run)), None)
    return exact


def _has_backward(record: Record) -> bool:
    return record.kernels is not None and any(
        row.phase == "backward" for row in record.kernels.rows
    )


def _in(rows: Iterable[KernelRow], phases: Sequence[str]) -> list[KernelRow]:
    return [row for row in rows if row.phase in phases]


def _noun(kernels: Kernels) -> str:
    return "kernel" if kernels.source == "kernels" else "operator"
