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
    """What torch.compile did in this process, from its own counters.

    ``compile_seconds`` sums forward and backward graphs; ``fell_back`` is true when any frame
    was left to run eagerly, as after the recompile limit, or nothing was compiled at all.
    """
    from torch._dynamo.utils import counters, get_compilation_metrics

    metrics = get_compilation_metrics()
    frames, graphs = counters["frames"], int(counters["stats"]["unique_graphs"])
    stages_us = {
        "tracing": sum(metric.dynamo_cumulative_compile_time_us or 0 for metric in metrics),
        "autograd": sum(metric.aot_autograd_cumulative_compile_time_us or 0 for metric in metrics),
        "inductor": sum(metric.inductor_cumulative_compile_time_us or 0 for metric in metrics),
    }
    return Compile(
        mode=spec.compile,
        backend=spec.compile_backend,
        scope=spec.compile_scope,
        first_step_ms=first_step_ms,
        compile_seconds=sum(metric.duration_us or 0 for metric in metrics) / 1e6,
        graphs=graphs,
        graph_breaks={
            str(reason).splitlines()[0]: int(count)
            for reason, count in counters["graph_break"].items()
        },
        recompiles=sum(1 for metric in metrics if metric.recompile_reason),
        fell_back=not graphs
        or frames["ok"] < frames["total"]
        or any(metric.fail_type for metric in metrics),
        # Each stage contains the ones after it.
        stages_seconds={name: us / 1e6 for name, us in stages_us.items() if us},
    )
