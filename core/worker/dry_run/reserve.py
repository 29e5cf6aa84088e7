"""The reserved memory of a measured step, predicted in the process that measured it."""

from __future__ import annotations

import os

import msgspec
import torch

from ...analysis.memory.predicted import row_by_row
from ...errors import SysbenchError
from ...estimate.allocator_settings import settings_of
from ...estimate.closed_form import why_not_predicted
from ...estimate.exact import ExactPrediction, canonical_spec, why_not_played
from ...estimate.libraries import workspace_bytes
from ...estimate.requests import held_by
from ...record.record import Memory
from ...spec.spec import RunSpec


def with_own_prediction(memory: Memory, spec: RunSpec) -> Memory:
    """The block with what the step of the user's model takes when it is played; else the reason.

    It is played in this process after everything was measured: the built-in models have a closed
    form, which the record takes instead.
    """
    why = why_not_played(spec)
    if why is None:
        try:
            return _with_played_step(memory, spec)
        except Exception as error:  # of code that cannot do without values
            cause = error.__cause__ or error
            why = f"the step cannot be played: {type(cause).__name__}: {cause}".splitlines()[0]
    names = ("predicted_peak_bytes", "reconciliation", "predicted_reserved_bytes")
    return msgspec.structs.replace(memory, missing=memory.missing | dict.fromkeys(names, why))


def _with_played_step(memory: Memory, spec: RunSpec) -> Memory:
    from .child import exact_prediction

    prediction = exact_prediction(canonical_spec(spec))
    return msgspec.structs.replace(
        memory,
        predicted_peak_bytes=prediction.peak_bytes,
        predicted_reserved_bytes=_held(prediction, spec) if spec.on_cuda else None,
        reconciliation=row_by_row(memory, prediction),
    )


def with_predicted_reserve(memory: Memory, spec: RunSpec) -> Memory:
    """The block with what a model of the allocator reserves; ``missing`` says why there is none."""
    if not spec.on_cuda or spec.is_own:
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

    return _held(quick_prediction(canonical_spec(spec)), spec)


def _held(prediction: ExactPrediction, spec: RunSpec) -> int:
    properties = torch.cuda.get_device_properties(torch.device(spec.device))
    workspace = workspace_bytes(f"{properties.major}.{properties.minor}")
    requests = prediction.requests
    assert requests is not None
    limit = spec.memory_limit or None
    return held_by(requests, workspace, settings_of(os.environ), limit).reserved_bytes
