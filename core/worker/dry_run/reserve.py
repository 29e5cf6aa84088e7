"""The reserved memory of a measured step, predicted in the process that measured it."""

from __future__ import annotations

import os

import msgspec
import torch

from sysbench.core.errors import SysbenchError
from sysbench.core.formatting import format_bytes
from sysbench.core.memory.predicted import row_by_row
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.closed_form import why_not_predicted
from sysbench.core.predict.dry_run_client import ExactPrediction, canonical_spec, unsupported_reason
from sysbench.core.predict.requests import Shortage, replay_requests
from sysbench.core.predict.sizes import workspace_bytes
from sysbench.core.record.record import Memory
from sysbench.core.spec.spec import RunSpec


class ShortInModel(Exception):
    """The allocator model runs out of memory in a step that ran."""

    def __init__(self, shortage: Shortage) -> None:
        requested = format_bytes(shortage.requested_bytes)
        reserved = format_bytes(shortage.reserved_bytes)
        super().__init__(
            f"the allocator model cannot place {requested} in {shortage.phase}, with "
            f"{reserved} reserved"
        )


def with_own_prediction(memory: Memory, spec: RunSpec) -> Memory:
    """Add the dry run's prediction of a user's model, or the reason why there is none.

    Runs in this process after the measurement. Built-in models use the closed form.
    """
    why = unsupported_reason(spec)
    if why is None:
        try:
            return _with_dry_run(memory, spec)
        except Exception as error:  # code that reads values
            cause = error.__cause__ or error
            why = f"the dry run failed: {type(cause).__name__}: {cause}".splitlines()[0]
    names = ("predicted_peak_bytes", "reconciliation", "predicted_reserved_bytes")
    return msgspec.structs.replace(memory, missing=memory.missing | dict.fromkeys(names, why))


def _with_dry_run(memory: Memory, spec: RunSpec) -> Memory:
    from sysbench.core.worker.dry_run.child import exact_prediction  # lazy: few runs need it

    prediction = exact_prediction(canonical_spec(spec))
    return msgspec.structs.replace(
        memory,
        predicted_peak_bytes=prediction.peak_bytes,
        predicted_reserved_bytes=_held(prediction, spec) if spec.on_cuda else None,
        reconciliation=row_by_row(memory, prediction),
    )


def with_predicted_reserve(memory: Memory, spec: RunSpec) -> Memory:
    """Add the modelled reserved bytes; ``missing`` has the reason if there are none."""
    if not spec.on_cuda or spec.is_own:
        return memory
    why = why_not_predicted(spec)
    if spec.workload != "transformer" or spec.checkpoint:
        why = why or "the dry run covers transformer steps without recomputation"
    if why is None:
        try:
            return msgspec.structs.replace(memory, predicted_reserved_bytes=_reserved_bytes(spec))
        except ShortInModel as short:
            why = str(short)
        except (SysbenchError, NotImplementedError, RuntimeError) as error:
            why = f"the dry run failed: {type(error).__name__}: {error}"
    missing = memory.missing | {"predicted_reserved_bytes": why}
    return msgspec.structs.replace(memory, missing=missing)


def _reserved_bytes(spec: RunSpec) -> int:
    from sysbench.core.worker.dry_run.child import exact_prediction  # lazy: few runs need it

    return _held(exact_prediction(canonical_spec(spec)), spec)


def _held(prediction: ExactPrediction, spec: RunSpec) -> int:
    properties = torch.cuda.get_device_properties(torch.device(spec.device))
    workspace = workspace_bytes(f"{properties.major}.{properties.minor}")
    requests = prediction.requests
    assert requests is not None
    held = replay_requests(
        requests,
        workspace,
        parse_allocator_settings(os.environ),
        _capacity_bytes(spec),
        is_limited=bool(spec.memory_limit),
    )
    if held.shortage is not None:
        raise ShortInModel(held.shortage)
    return held.reserved_bytes


def _capacity_bytes(spec: RunSpec) -> int:
    """Bytes that this process's allocator can reserve; a full device frees cached segments."""
    device = torch.device(spec.device)
    free, _ = torch.cuda.mem_get_info(device)
    here = free + torch.cuda.memory_reserved(device)
    return min(here, spec.memory_limit or here)
