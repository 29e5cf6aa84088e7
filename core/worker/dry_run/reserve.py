"""Predictions of a measured step, or of one that ran out of memory, in the same process."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from sysbench.core.formatting import first_line, format_bytes
from sysbench.core.memory.predicted import row_by_row
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.closed_form import COMMUNICATION
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    Estimator,
    ExactPrediction,
    TrainingVariant,
    canonical_spec,
    unsupported_reason,
)
from sysbench.core.predict.requests import AllocatorPeak, Shortage, replay_requests
from sysbench.core.predict.sizes import workspace_bytes
from sysbench.core.record.memory import OomSnapshot
from sysbench.core.record.record import Memory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.failures import message_of

OF_ALLOCATOR = ("predicted_allocated_bytes", "predicted_reserved_bytes")
OF_DRY_RUN = ("predicted_peak_bytes", "reconciliation", *OF_ALLOCATOR)


class ShortInModel(Exception):
    """The allocator model runs out of memory in a step that ran."""

    def __init__(self, shortage: Shortage) -> None:
        requested = format_bytes(shortage.requested_bytes)
        reserved = format_bytes(shortage.reserved_bytes)
        super().__init__(
            f"the allocator model cannot place {requested} in {shortage.phase}, with "
            f"{reserved} reserved"
        )


def with_dry_run(memory: Memory, spec: RunSpec) -> Memory:
    """Add what a dry run predicts, or the reason why there is nothing.

    For a user's model that is the peak and its rows, for which built-in models have the closed
    form; on CUDA it is what the allocator holds for both. The dry run executes the user's code
    again. One of several ranks is played in another process.
    """
    has_closed_form = not spec.needs_dry_run and spec.ranks == 1
    if has_closed_form and not spec.on_cuda:
        return memory
    variant, why = _variant_of(spec)
    why = why or unsupported_reason(spec.changed(ranks=1, parallel="none", shard_optimizer=False))
    if not spec.is_own and spec.workload != "transformer":
        why = why or "the dry run covers transformer steps"
    found: dict[str, Any] = dict.fromkeys(OF_ALLOCATOR if has_closed_form else OF_DRY_RUN)
    if why is None:
        try:
            if spec.ranks > 1:  # this one is in a process group
                with Estimator() as estimator:
                    prediction = estimator.predict(spec, variant=variant)
            else:
                prediction = exact_prediction(canonical_spec(spec))
            if not has_closed_form:
                found["predicted_peak_bytes"] = prediction.peak_bytes
                found["reconciliation"] = row_by_row(memory, prediction)
            if spec.on_cuda:
                held = _held(prediction, spec)
                found["predicted_allocated_bytes"] = held.allocated_bytes
                found["predicted_reserved_bytes"] = held.reserved_bytes
            if spec.ranks > 1 and not spec.on_cuda:
                found["missing"] = memory.missing | {f"reconciliation.{COMMUNICATION}": GLOO_COPIES}
            return msgspec.structs.replace(memory, **found)
        except ShortInModel as short:
            why = str(short)
        except Exception as error:  # code that reads values
            why = _why_failed(error)
    return msgspec.structs.replace(memory, missing=memory.missing | dict.fromkeys(found, why))


GLOO_COPIES = "gloo copies what ranks send and get on the CPU, which is not predicted"
PLAYED_WAYS = ("ddp", "fsdp2")


def _variant_of(spec: RunSpec) -> tuple[TrainingVariant, str | None]:
    """What a dry run plays of several ranks, and why it plays none."""
    if spec.ranks == 1:
        return PLAIN, None
    if spec.parallel not in PLAYED_WAYS or spec.shard_optimizer:
        how = "shard_optimizer" if spec.shard_optimizer else f"parallel={spec.parallel}"
        allowed = " and ".join(f"parallel={way}" for way in PLAYED_WAYS)
        return PLAIN, f"{how} is not predicted; ranks with {allowed} are"
    world = World(dp=spec.ranks, data="ddp" if spec.parallel == "ddp" else "fsdp2")
    return TrainingVariant(world=world, rank=dist.get_rank()), None


def oom_with_dry_run(snapshot: OomSnapshot, spec: RunSpec) -> OomSnapshot:
    """Add the peak that a dry run of a user's model predicts, or the reason why there is none."""
    why = unsupported_reason(spec)
    if why is None:
        try:
            peak = exact_prediction(canonical_spec(spec)).peak_bytes
            return msgspec.structs.replace(snapshot, predicted_peak_bytes=peak)
        except Exception as error:  # code that reads values
            why = _why_failed(error)
    return msgspec.structs.replace(
        snapshot, missing=snapshot.missing | {"predicted_peak_bytes": why}
    )


def _why_failed(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"the dry run failed: {type(cause).__name__}: {first_line(message_of(cause))}"


def _held(prediction: ExactPrediction, spec: RunSpec) -> AllocatorPeak:
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
    return held


def _capacity_bytes(spec: RunSpec) -> int:
    """Bytes that this process's allocator can reserve; a full device frees cached segments."""
    device = torch.device(spec.device)
    free, _ = torch.cuda.mem_get_info(device)
    here = free + torch.cuda.memory_reserved(device)
    return min(here, spec.memory_limit or here)
