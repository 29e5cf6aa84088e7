"""Parts of the record on torch.compile: its work, and the kernels that it generated."""

from __future__ import annotations

from typing import Literal

import msgspec

Extent = Literal["whole", "part", "none"]
"""How much of the model ran compiled: all of it as one graph, parts, or nothing."""

Cause = Literal[
    "disabled", "nothing-compiled", "graph-break", "recompile-limit", "unsupported", "failed"
]


class GraphBreak(msgspec.Struct, frozen=True):
    """A place (``file:line in function``) where tracing stopped and Python ran eagerly."""

    reason: str
    place: str
    code: str
    count: int = 1


class Recompile(msgspec.Struct, frozen=True):
    place: str
    guard: str


class EagerPart(msgspec.Struct, frozen=True):
    cause: Cause
    place: str
    reason: str


class Compile(msgspec.Struct, frozen=True):
    """The work of torch.compile: null in the record if ``compile`` is off.

    ``fell_back`` is true unless ``extent`` is ``whole``; ``eager_parts`` has the parts left out. In
    ``stages_seconds`` each stage contains the next ones, ``parts_seconds`` add up to
    ``compile_seconds``. ``cold_seconds`` start from empty caches, ``warm_seconds`` from full ones
    in a fresh process. ``cache_hits`` and ``cache_misses`` count graphs.
    """

    mode: str
    backend: str
    scope: str
    first_step_ms: float
    compile_seconds: float
    graphs: int
    graph_breaks: dict[str, int]
    recompiles: int
    fell_back: bool
    stages_seconds: dict[str, float] = {}
    extent: Extent | None = None
    breaks: list[GraphBreak] = []
    recompiled: list[Recompile] = []
    eager_parts: list[EagerPart] = []
    parts_seconds: dict[str, float] = {}
    cold_seconds: float | None = None
    warm_seconds: float | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    cudagraph_skips: dict[str, int] = {}
    missing: dict[str, str] = {}


class GeneratedKernel(msgspec.Struct, frozen=True):
    """A kernel of a compiled graph, decoded; library calls between kernels count as kernels.

    Kernels of one name and phase that differ only by a layer's number share a row. ``modules`` and
    ``sources`` (``file:line code``) are those of the operators in ``ops``; ``module`` is the
    innermost module around all of them, "" for the whole model. ``sites`` counts the calls in the
    graph. ``bytes_per_call`` is the compiler's count of bytes read and written, null if it has
    none. ``file`` is the generated code, next to the trace.
    """

    name: str
    phase: Literal["forward", "backward"]
    fused: bool
    ops: list[str]
    module: str
    modules: list[str]
    sources: list[str]
    sites: int
    bytes_per_call: float | None
    file: str
