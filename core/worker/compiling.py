"""torch.compile as the spec asks for it, and what it did."""

from __future__ import annotations

from torch import nn

from ..models.transformer import Transformer
from ..record import Compile
from ..spec import RunSpec

DYNAMIC = {"auto": None, "on": True, "off": False}


def compiled(spec: RunSpec, model: Transformer) -> nn.Module:
    """The model, or its blocks, wrapped by torch.compile; compiling happens at the first step."""
    if spec.compile == "off":
        return model
    targets = list(model.blocks) if spec.compile_scope == "block" else [model]
    # Only inductor knows modes; the other backends refuse the argument.
    mode = spec.compile if spec.compile_backend == "inductor" else None
    for target in targets:
        target.compile(
            fullgraph=spec.compile_fullgraph,
            dynamic=DYNAMIC[spec.compile_dynamic],
            backend=spec.compile_backend,
            mode=mode,
        )
    return model


def describe_compilation(spec: RunSpec, first_step_ms: float) -> Compile:
    """What torch.compile did in this process, from its own counters."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    metrics = get_compilation_metrics()
    frames = {metric.co_name for metric in metrics}
    # One graph per compiled block type is expected; more of the same code are recompiles.
    recompiles = sum(1 for metric in metrics if getattr(metric, "recompile_reason", None))
    limit_hit = bool(counters["frames"].get("total", 0)) and any(
        "recompile_limit" in reason or "cache_size_limit" in reason
        for reason in counters["unimplemented"]
    )
    seconds = sum(metric.entire_frame_compile_time_s or 0.0 for metric in metrics)
    stages = {
        "inductor": sum(metric.inductor_compile_time_s or 0.0 for metric in metrics),
        "code generation": sum(metric.code_gen_time_s or 0.0 for metric in metrics),
    }
    failures = [metric.fail_type for metric in metrics if metric.fail_type]
    return Compile(
        mode=spec.compile,
        backend=spec.compile_backend,
        scope=spec.compile_scope,
        first_step_ms=first_step_ms,
        compile_seconds=seconds,
        graphs=int(counters["stats"].get("unique_graphs", 0)),
        graph_breaks={str(reason): int(n) for reason, n in counters["graph_break"].items()},
        recompiles=recompiles,
        fell_back=limit_hit or bool(failures) or not frames,
        stages_seconds=stages,
    )
