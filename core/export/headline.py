"""What was measured, in a few lines: every column that decides the number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..machine import device_name, threads, torch_version
from ..record import Record


def headline(record: Record) -> list[str]:
    """The model; the settings; the machine; the run. Foreign text is not escaped here."""
    return [
        model_line(record.spec, record.parameters),
        settings_line(record.spec),
        machine_line(record.spec, record.environment),
        f"run {record.id} · {record.status} · identity {record.identity}",
    ]


def model_line(spec: Mapping[str, Any], parameters: int) -> str:
    """``tiny: 2,230,272 parameters (d_model 128, d_ff 512, …)``."""
    return (
        f"{spec.get('model')}: {parameters:,} parameters (d_model {spec.get('d_model')}, "
        f"d_ff {spec.get('d_ff')}, {spec.get('layers')} layers, {spec.get('heads')} heads, "
        f"vocab {spec.get('vocab'):,})"
    )


def settings_line(spec: Mapping[str, Any]) -> str:
    """``batch 4 · context 128 · fp32 · naive attention · train with adamw-foreach · …``."""
    step = str(spec.get("step"))
    parts = [
        f"batch {spec.get('batch')}",
        f"context {spec.get('context')}",
        str(spec.get("precision")),
        f"{spec.get('attention')} attention",
        f"{step} with {spec.get('optimizer')}" if step == "train" else step,
        f"compile {spec.get('compile')}",
    ]
    if spec.get("sync") == "every-step":
        parts.append("sync every step")
    if spec.get("clip"):
        parts.append(f"clip {spec['clip']}")
    return " · ".join(parts)


def machine_line(spec: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """``cpu · AMD EPYC 7B13 · 3 threads · torch 2.13.0``; what is not known is left out."""
    count = threads(environment) or spec.get("threads")
    torch = torch_version(environment)
    parts = [
        str(spec.get("device")),
        device_name(environment) or "",
        f"{count} threads" if count else "",
        f"torch {torch}" if torch else "",
    ]
    return " · ".join(part for part in parts if part)
