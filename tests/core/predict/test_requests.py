"""Requests of a step: recorded, extended to more layers, and replayed in an allocator."""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.allocator import GRANULE
from sysbench.core.predict.allocator_settings import MIB, AllocatorSettings
from sysbench.core.predict.requests import (
    BACKWARD_PRODUCT,
    OPTIMIZER,
    PRODUCT,
    SHALLOW,
    STATE,
    STEP,
    Requests,
    RequestTrace,
    extended_trace,
    replay_requests,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.dry_step import dry_run
from sysbench.core.worker.dry_run.exact import exact_prediction
from tests.drawn import some_of

MODEL: dict[str, Any] = {"vocab": 500, "d_model": 128, "d_ff": 320, "heads": 4, "device": "cuda:0"}
WORKSPACE = 32 * MIB


def settled(entries: list[int]) -> list[tuple[int, frozenset[int]]]:
    """Each request with the blocks that are returned before it, whose order changes nothing.

    In granules: the list of all gradients' norms has a number for each parameter at any depth.
    """
    rows: list[tuple[int, frozenset[int]]] = []
    returned: set[int] = set()
    for entry in [*entries, 1]:
        if entry > 0:
            rows.append((-(-entry // GRANULE), frozenset(returned)))
            returned = set()
        else:
            returned.add(~entry)
    return rows


@pytest.mark.parametrize(
    ("step", "precision", "attention", "optimizer", "clip"),
    [
        ("decode", "bf16-pure", "sdpa", "adamw-fused", 0.0),
        ("prefill", "fp32", "naive", "adamw-fused", 0.0),
        *some_of(
            "traces of seven layers",
            [
                ("train", "fp32", "naive", "adamw-fused", 0.0),
                ("train", "bf16", "sdpa", "adamw-foreach", 1.0),
                ("train", "bf16", "naive", "adamw-loop", 0.0),
                ("forward+backward", "bf16-pure", "sdpa-math", "adamw-fused", 0.0),
                ("forward", "bf16", "naive", "adamw-fused", 0.0),
                ("inference", "fp32", "sdpa", "adamw-fused", 0.0),
            ],
            3,
        ),
    ],
)
def test_a_trace_of_four_layers_gives_that_of_seven(
    step: Any, precision: Any, attention: Any, optimizer: Any, clip: float
) -> None:
    spec = RunSpec(
        **MODEL,
        layers=7,
        batch=2,
        context=64,
        step=step,
        precision=precision,
        attention=attention,
        optimizer=optimizer,
        clip=clip,
    )
    shallow, whole = dry_run(spec.changed(layers=SHALLOW)).trace, dry_run(spec).trace
    assert shallow is not None and whole is not None
    deeper, real = extended_trace(shallow, 7).requests(), whole.requests()
    for part in ("build", "state", "step"):
        assert settled(getattr(deeper, part)) == settled(getattr(real, part)), part
    names = [name for name, _ in real.marks]
    assert [name for name, _ in deeper.marks] == names
    assert (BACKWARD_PRODUCT in names) == spec.has_backward
    assert bool(real.state) == (step == "train")


def test_every_block_is_returned_once_and_only_the_model_and_the_loss_stay() -> None:
    prediction = exact_prediction(RunSpec(**MODEL, layers=6, batch=2, context=64, step="train"))
    requests = prediction.requests
    assert requests is not None
    entries = [*requests.build, *requests.state, *requests.step]
    live: dict[int, int] = {}
    number = 0
    for entry in entries:
        if entry > 0:
            live[number] = entry
            number += 1
        else:
            del live[~entry]
    resident = {row.name: row.bytes for row in prediction.ledger}
    kept = ("parameters", "optimizer state", "buffers", "inputs")
    assert sum(live.values()) == sum(resident[name] for name in kept) + 4  # the loss


def test_blocks_that_differ_cannot_be_extended() -> None:
    trace = RequestTrace()
    trace.mark(STATE)
    trace.mark(STEP)
    for block, size in ((0, 512), (1, 512), (2, 512), (3, 1024), (4, 512)):
        trace.request(size, block)
    with pytest.raises(WorkerFailed, match="blocks differ"):
        extended_trace(trace, 9)


def a_step(**changes: Any) -> Requests:
    """Weights of 10 MiB; a step of two activations, whose second stays to its end."""
    values: dict[str, Any] = {
        "build": [10 * MIB],
        "state": [20 * MIB],
        "step": [30 * MIB, 40 * MIB, ~2, ~3, 512],
        "marks": [("forward", 0), (PRODUCT, 1), ("backward", 2), (OPTIMIZER, 4)],
    }
    return Requests(**values | changes)


def test_state_and_workspaces_come_in_the_first_step_and_stay() -> None:
    held = replay_requests(a_step(), WORKSPACE)
    assert held.first_step_bytes == (10 + 30 + 32 + 40) * MIB
    assert held.allocated_bytes == (10 + 20 + 32 + 30 + 40) * MIB
    assert held.reserved_bytes >= held.allocated_bytes
    assert a_step().threads == 1


def test_the_refused_request_is_reported_with_its_place() -> None:
    needed = replay_requests(a_step(), WORKSPACE).reserved_bytes
    assert replay_requests(a_step(), WORKSPACE, capacity_bytes=needed).shortage is None
    shortage = replay_requests(a_step(), WORKSPACE, capacity_bytes=60 * MIB).shortage
    assert shortage is not None
    assert (shortage.step, shortage.phase, shortage.requested_bytes) == (1, "forward", WORKSPACE)
    in_build = replay_requests(a_step(), WORKSPACE, capacity_bytes=MIB).shortage
    assert in_build is not None and (in_build.step, in_build.phase) == (0, "build")


def test_expandable_segments_need_less_where_sizes_change_between_steps() -> None:
    step = [size * MIB for size in (30, 50, 70)]
    grows = a_step(step=[*step, ~2, ~3, ~4, 150 * MIB, ~5], marks=[("forward", 0)])
    plain = replay_requests(grows, WORKSPACE)
    expandable = replay_requests(grows, WORKSPACE, AllocatorSettings(expandable_segments=True))
    assert expandable.reserved_bytes < plain.reserved_bytes
    assert expandable.allocated_bytes == plain.allocated_bytes


def test_a_block_is_reused_on_its_stream_only() -> None:
    """The build's own block comes first: numbers of streams stay those of their requests."""
    trace = RequestTrace()
    trace.give_back(trace.request(30 * MIB))
    trace.request(30 * MIB, stream=1)
    trace.mark(STEP)
    for stream in (0, 1):
        trace.give_back(trace.request(40 * MIB, stream=stream))
    requests = trace.without(()).requests()
    assert requests.streams == {1: 1, 3: 1}
    assert replay_requests(requests, 0).reserved_bytes == (30 + 30 + 40 + 40) * MIB
    peak = replay_requests(requests, 0, leaves_nothing=True)
    assert (peak.allocated_bytes, peak.reserved_bytes) == (70 * MIB, 110 * MIB)


def test_what_the_build_returns_itself_can_be_left_out() -> None:
    """What it leaves in the cache is larger than what the step asks for, and is cut for it."""
    weights, drawn = 30 * MIB, 50 * MIB
    built = a_step(
        build=[weights, drawn, ~1],
        state=[],
        step=[30 * MIB, 40 * MIB, ~2, ~3],
        marks=[("forward", 0)],
    )
    drawing, bare = replay_requests(built, 0), replay_requests(built, 0, leaves_nothing=True)
    assert bare == replay_requests(
        a_step(
            build=[weights],
            state=[],
            step=[30 * MIB, 40 * MIB, ~1, ~2],
            marks=[("forward", 0)],
        ),
        0,
    )
    assert (drawing.reserved_bytes, bare.reserved_bytes) == (120 * MIB, 100 * MIB)
