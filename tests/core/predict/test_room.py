"""Memory available to a step, on devices here and on devices of quoted size."""

from __future__ import annotations

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.machine.peaks import find_card
from sysbench.core.predict.allocator_settings import MIB
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.fit_grid import (
    ANY_CARD,
    Card,
    available_memory,
    card_elsewhere,
    card_here,
    fit_verdict,
    missing_bytes,
    spare_bytes,
    spec_elsewhere,
)
from sysbench.core.predict.requests import replay_requests
from sysbench.core.predict.sizes import HOPPER_WORKSPACE, WORKSPACE, workspace_bytes
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.exact import exact_prediction

SPEC = RunSpec(device="cuda:0")

# In MiB: what NVML counts, what CUDA has of it, and what a context takes.
CARDS = {
    "H100": (81_559, 81_008, 526),
    "A100": (40_960, 40_339, 424),
    "4090": (24_564, 24_082, 400),
}


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("card", [ANY_CARD, card_here("9.0")], ids=["quoted", "here"])
def test_the_available_memory_is_between_its_bounds(name: str, card: Card) -> None:
    quoted, total, context = CARDS[name]
    room = available_memory(SPEC, (quoted if card is ANY_CARD else total) * MIB, card)
    assert room.least < (total - context) * MIB < room.most


@pytest.mark.parametrize(("key", "name"), [("h100", "H100"), ("a100-40gb", "A100")])
def test_the_available_memory_of_a_named_card_follows_its_figures(key: str, name: str) -> None:
    known, (_, total, context) = find_card(key), CARDS[name]
    room = available_memory(SPEC, known.memory_bytes, card_elsewhere(known))
    assert room.least < (total - context) * MIB < room.most
    assert room.capability == known.capability


def test_a_spec_on_a_card_is_on_cuda_and_under_its_own_limit_where_that_is_less() -> None:
    h100, spec = find_card("h100"), RunSpec()
    assert spec_elsewhere(spec, h100) == spec.changed(device="cuda:0")
    limited = spec.changed(memory_limit=24 * 2**30)
    assert spec_elsewhere(limited, h100) == limited.changed(device="cuda:0")
    beyond = spec.changed(memory_limit=100 * 2**30)
    assert spec_elsewhere(beyond, h100) == spec.changed(device="cuda:0")
    with pytest.raises(SpecError, match="h100 is a CUDA device"):
        spec_elsewhere(spec.changed(device="cpu"), h100)


@pytest.mark.parametrize("layers", [20, 60])
def test_what_is_to_spare_has_the_sign_of_what_fits(layers: int) -> None:
    h100 = find_card("h100")
    spec = RunSpec(vocab=100, d_model=2048, d_ff=8192, layers=layers, heads=8, device="cuda:0")
    room = available_memory(spec, h100.memory_bytes, card_elsewhere(h100))
    prediction = predict(spec, h100.capability)
    fits = fit_verdict(prediction, room) == "fits"
    assert (spare_bytes(prediction, room) >= 0) == fits == (layers == 20)


def test_a_limit_is_for_the_allocator_alone() -> None:
    spec = SPEC.changed(memory_limit=2**30)
    room = available_memory(spec, 2**30, card_here("8.0"))
    assert (room.least, room.most, room.capability) == (2**30, 2**30, "8.0")


def test_workspaces_go_by_the_capability() -> None:
    spec = RunSpec(vocab=500, d_model=64, d_ff=160, layers=2, heads=2, context=32, device="cuda:0")
    threads, fewer = 2, HOPPER_WORKSPACE - WORKSPACE
    assert {workspace_bytes(one) for one in ("9.0", "10.0", "10.3", "12.0")} == {HOPPER_WORKSPACE}
    assert {workspace_bytes(one) for one in ("7.5", "8.0", "8.9")} == {WORKSPACE}
    assert predict(spec, "9.0") == predict(spec)
    exact = exact_prediction(spec, "8.0")
    for hopper, ampere in ((predict(spec), predict(spec, "8.0")), (exact_prediction(spec), exact)):
        assert hopper.peak_bytes - ampere.peak_bytes == threads * fewer
    assert exact.requests is not None
    # A limit that the smaller workspaces just leave room for, whatever the build leaves cached.
    limit = max(
        replay_requests(exact.requests, WORKSPACE, leaves_nothing=nothing).most_reserved_bytes
        for nothing in (False, True)
    )
    limited = spec.changed(memory_limit=limit)
    verdicts = [
        fit_verdict(exact, available_memory(limited, limit, card_here(c))) for c in ("8.0", "9.0")
    ]
    assert verdicts == ["fits", "over"]


def test_what_fits_only_in_the_most_memory_that_a_card_may_have_is_not_sure_to_fit() -> None:
    """Recorded on a "4090" that computes nothing: the step ran out of memory there."""
    spec = RunSpec(
        model="cs336-2025/small", batch=8, context=1363, precision="bf16", device="cuda:0"
    )
    room = available_memory(spec, 24_082 * MIB, card_here("8.9"))
    prediction = exact_prediction(spec, "8.9")
    assert prediction.requests is not None
    workspace = workspace_bytes("8.9")
    least, most = (
        replay_requests(prediction.requests, workspace, None, capacity)
        for capacity in (room.least, room.most)
    )
    assert least.shortage is not None
    assert most.shortage is None
    assert fit_verdict(prediction, room) == "close"
    assert missing_bytes(prediction, room) > 0
