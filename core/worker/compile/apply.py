"""Application of torch.compile by the spec, and the description of the compilation."""

from __future__ import annotations

from typing import Any

import msgspec
from torch import nn

from sysbench.core.errors import SpecError
from sysbench.core.record.compile import Extent
from sysbench.core.record.record import Compile
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.metrics import (
    eager_parts,
    graph_breaks,
    parts_seconds,
    recompiles,
)

DYNAMIC = {"auto": None, "on": True, "off": False}
LOADING = "PyCodeCache.load_by_key_path"
RECORDS_KEPT = 4096
"""Limit of compilation records; dynamo's default is 64."""


def compiled(spec: RunSpec, model: nn.Module) -> nn.Module:
    """The model, or its blocks, wrapped by torch.compile; compiling happens at the first step."""
    if spec.compile == "off":
        return model
    _keep_records()
    # Only inductor has modes; other backends reject the argument.
    mode = spec.compile if spec.compile_backend == "inductor" else None
    targets = compiled_modules(spec, model)
    if not targets:
        allowed = "whole: this model has no list of blocks of one class"
        raise SpecError("compile_scope", spec.compile_scope, allowed)
    for target in targets:
        target.compile(
            fullgraph=spec.compile_fullgraph,
            dynamic=DYNAMIC[spec.compile_dynamic],
            backend=spec.compile_backend,
            mode=mode,
        )
    return model


def compiled_modules(spec: RunSpec, model: nn.Module) -> list[nn.Module]:
    """Modules that the spec compiles as a graph each, if it compiles: the blocks, or the model."""
    return blocks_of(model) if spec.compile_scope == "block" else [model]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one class in the model; empty without a list of two."""
    lists = [
        list(module)
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 0
    ]
    alike = [one for one in lists if len({type(block) for block in one}) == 1]
    return max(alike, key=len, default=[])


def describe_compilation(spec: RunSpec, first_step_ms: float) -> Compile:
    """The compile block of this process, from torch.compile's counters and records."""
    from torch._dynamo.utils import (
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
    seconds = sum(metric.duration_us or 0 for metric in metrics) / 1e6
    hits, misses = _cache_use(counters)
    block = Compile(
        mode=spec.compile,
        backend=spec.compile_backend,
        scope=spec.compile_scope,
        first_step_ms=first_step_ms,
        compile_seconds=seconds,
        graphs=graphs,
        graph_breaks=_counted(counters["graph_break"]),
        recompiles=len(again),
        fell_back=bool(eager),
        # Each stage contains the stages after it.
        stages_seconds={name: us / 1e6 for name, us in _nested_us(metrics).items() if us},
        extent=_extent(graphs, fell_back=bool(eager)),
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


def _keep_records() -> None:
    from torch._dynamo import utils

    if hasattr(utils, "set_compilation_metrics_limit"):
        utils.set_compilation_metrics_limit(RECORDS_KEPT)


def _extent(graphs: int, *, fell_back: bool) -> Extent:
    if not graphs:
        return "none"
    return "part" if fell_back else "whole"


def _nested_us(metrics: Any) -> dict[str, int]:
    def total(name: str) -> int:
        return sum(getattr(metric, name, None) or 0 for metric in metrics)

    return {
        "tracing": total("dynamo_cumulative_compile_time_us"),
        "autograd": total("aot_autograd_cumulative_compile_time_us"),
        "inductor": total("inductor_cumulative_compile_time_us"),
    }


def _counted(reasons: Any) -> dict[str, int]:
    return {str(reason).splitlines()[0]: int(count) for reason, count in reasons.items()}


def _cache_use(counters: Any) -> tuple[int | None, int | None]:
    """Hits and misses of Inductor's cache, in graphs; None where it was not used."""
    inductor = counters["inductor"]
    hits, misses = int(inductor["fxgraph_cache_hit"]), int(inductor["fxgraph_cache_miss"])
    return (hits, misses) if hits or misses else (None, None)


def _cudagraph_skips(metrics: Any, count: int, otherwise: str) -> dict[str, int]:
    """Reasons why graphs were not captured as CUDA graphs, with the number of graphs of each."""
    reasons = [
        reason for metric in metrics if (reason := getattr(metric, "cudagraph_skip_reason", None))
    ]
    skips: dict[str, int] = {reason: reasons.count(reason) for reason in reasons}
    if count > len(reasons):
        skips[otherwise] = count - len(reasons)
    return skips


def _with_cache_state(spec: RunSpec, block: Compile) -> Compile:
    """The block with its seconds as those of a cold or of a warm cache, or of neither."""
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
