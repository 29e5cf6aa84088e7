"""The reserved memory of a measured step, predicted in the process that measured it."""

from __future__ import annotations

import os

import msgspec
import torch

from ...errors import SysbenchError
from ...estimate.allocator_settings import settings_of
from ...estimate.closed_form import why_not_predicted
from ...estimate.exact import canonical_spec
from ...estimate.libraries import workspace_bytes
from ...estimate.requests import held_by
from ...record.record import Memory
from ...spec.spec import RunSpec


def with_predicted_reserve(memory: Memory, spec: RunSpec) -> Memory:
    """The block with what a model of the allocator reserves; ``missing`` says why there is none."""
    if not spec.on_cuda:
        return memory
    why = why_not_predicted(spec)
    if spec.workload != "transformer" or spec.checkpoint:
        why = why or "the dry run plays a transformer's step, and none that recomputes"
    if why is None:
        try:
            return msgspec.structs.replace(memory, predicted_reserved_bytes=_reserved_bytes(spec))
        except (SysbenchError, NotImplementedError, RuntimeError) as error:
            why = f"the dry run failed: {type(error).__name__}: {error}"
    missing = memory.missing | {"predicted_reserved_bytes": why}
    return msgspec.structs.replace(memory, missing=missing)


def _reserved_bytes(spec: RunSpec) -> int:
    # Late: only CUDA runs need the dry run.
    from .child import quick_prediction

    properties = torch.cuda.get_device_properties(torch.device(spec.device))
    workspace = workspace_bytes(f"{properties.major}.{properties.minor}")
    requests = quick_prediction(canonical_spec(spec)).requests
    assert requests is not None
    limit = spec.memory_limit or None
    return held_by(requests, workspace, settings_of(os.environ), limit).reserved_bytes
