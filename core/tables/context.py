"""Tables and lines about a run: spec, passes, findings, environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sysbench.core.formatting import counted
from sysbench.core.record.environment import (
    FLOAT8,
    attention_words,
    device_name,
    nodes,
    threads,
    torch_version,
)
from sysbench.core.record.record import PassRecord, Record
from sysbench.core.spec.command_line import job_command
from sysbench.core.spec.own_model import JOB, OWN_MODEL, argument_words
from sysbench.core.spec.spec import NUMERIC_WORKLOADS
from sysbench.core.tables.table import Cell, Column, Table, facts, is_number, tabulate


def spec_table(record: Record) -> Table:
    """All keys of the spec, with the run's id, identity and parameter count."""
    values = {
        "run": record.id,
        "identity": record.identity,
        "status": record.status,
        "parameters": record.parameters,
        **{key: value if _is_cell(value) else str(value) for key, value in record.spec.items()},
    }
    return facts("spec", "What was measured", values)


def passes_table(record: Record) -> Table:
    """Outcome of each pass. ``over_bare`` is its step time over that of the timing pass, minus
    one."""
    bare = record.timing.step.median_ms if record.timing else None

    def over_bare(watched: PassRecord) -> float | None:
        return watched.step_ms / bare - 1 if bare and watched.step_ms else None

    return tabulate(
        record.passes,
        "name",
        Column("outcome", about="how the pass ended"),
        Column("step_ms", about="median step of the pass; the mean of a trace"),
        Column("over_bare", over_bare, about="step over that of the timing pass, minus one"),
        Column("seconds", about="duration of the pass on the host's clock"),
        Column("detail", about="details of how the pass ended"),
        name="passes",
        title="Passes: what measuring costs the step",
    )


def findings_table(record: Record) -> Table:
    return tabulate(
        record.findings,
        Column("severity", about="problem, warning, note or good"),
        Column("verdict", about="the finding in one sentence"),
        Column("why", about="numbers that support the finding"),
        Column("next", about="what to do about it"),
        Column("rule", about="rule that found it"),
        name="findings",
        title="Findings",
    )


def environment_table(record: Record) -> Table:
    """Hardware, software and settings; nested keys are joined with dots."""
    missing = record.environment.get("missing")
    values = dict(
        _flat({k: v for k, v in record.environment.items() if k not in ("missing", FLOAT8)})
    )
    return facts("environment", "Environment", values, missing if _is_map(missing) else None)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Cell]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if _is_map(value):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value))
        else:
            yield name, value if _is_cell(value) else str(value)


def _is_cell(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def headline(record: Record) -> list[str]:
    """Return lines about the model, settings, machine and run, not escaped."""
    return [
        model_line(record.spec, record.parameters),
        settings_line(record.spec, record.environment),
        machine_line(record.spec, record.environment),
        f"run {record.id} · {record.status} · identity {record.identity}",
    ]


def model_line(spec: Mapping[str, Any], parameters: int) -> str:
    """``tiny: 2,230,272 parameters (d_model 128, d_ff 512, …)``, or the workload if it has no
    model."""
    workload = spec.get("workload", "transformer")
    if workload == "attention":
        return f"{bare_attention(spec)}: no weights"
    if workload == OWN_MODEL:
        words = argument_words(spec.get("model_args"))
        count = f"{parameters:,} parameters" if parameters else "parameters not counted yet"
        return f"{spec.get('model')}: {count}" + (f" ({words})" if words else "")
    if workload == JOB:
        return f"{spec.get('model')}: a command, run unchanged"
    if workload != "transformer":
        return f"{workload}: no model"
    return (
        f"{spec.get('model')}: {parameters:,} parameters (d_model {spec.get('d_model')}, "
        f"d_ff {spec.get('d_ff')}, {spec.get('layers')} layers, {spec.get('heads')} heads, "
        f"vocab {spec.get('vocab'):,})"
    )


def bare_attention(spec: Mapping[str, Any]) -> str:
    """``bare attention, d 64, 1 head, not causal``."""
    causal = "causal" if spec.get("mask") == "causal" else "not causal"
    heads = counted(spec["heads"], "head")
    return f"bare attention, d {spec['d_model']}, {heads}, {causal}"


def settings_line(spec: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> str:
    """``batch 4 · context 128 · fp32 · naive attention · train with adamw-foreach · …``.

    Args:
        environment: Of the record; names the kernel that ``sdpa`` chose.
    """
    if spec.get("workload") in NUMERIC_WORKLOADS:
        return "values and types: no batch, no steps"
    if spec.get("workload") == JOB:
        return job_command(spec)
    step = str(spec.get("step"))
    parts = [
        *(f"{key} {spec.get(key)}" for key in ("batch", "context") if spec.get(key) != 0),
        str(spec.get("precision")),
        f"{attention_words(str(spec.get('attention')), environment or {})} attention",
        f"{step} with {spec.get('optimizer')}" if step == "train" else step,
        f"compile {spec.get('compile')}",
    ]
    if spec.get("sync") == "every-step":
        parts.append("sync every step")
    if spec.get("accumulation", 1) > 1:
        parts.append(f"{spec['accumulation']} micro-batches a step")
    if spec.get("clip"):
        parts.append(f"clip {spec['clip']}")
    if spec.get("checkpoint"):
        parts.append(f"recomputed by {counted(spec['checkpoint'], 'block')}")
    parts += ranks_words(spec)
    return " · ".join(parts)


def ranks_words(spec: Mapping[str, Any]) -> list[str]:
    """``2 ranks``, ``bucketed``, ``25 MiB buckets`` …; empty for one rank."""
    if spec.get("ranks", 1) == 1:
        return []
    parts = [f"{spec['ranks']} ranks"]
    if spec["workload"] == "all-reduce":
        return [*parts, f"all-reduce of {spec['payload_mib']:g} MiB"]
    parts.append(str(spec["parallel"]))
    if spec["parallel"] in ("bucketed", "ddp"):
        parts.append(f"{spec['bucket_mib']:g} MiB buckets")
    return [*parts, *(["sharded optimizer"] if spec["shard_optimizer"] else [])]


def machine_line(spec: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """``cpu · AMD EPYC 7B13 · 3 threads · torch 2.13.0``, plus the nodes if there are several."""
    count = threads(environment) or spec.get("threads")
    torch = torch_version(environment)
    parts = [
        str(spec.get("device")),
        device_name(environment) or "",
        counted(count, "thread") if count else "",
        f"torch {torch}" if torch else "",
        f"{len(names)} nodes {'+'.join(names)}" if (names := nodes(environment)) else "",
    ]
    return " · ".join(part for part in parts if part)
