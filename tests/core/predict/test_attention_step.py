"""The closed forms of bare attention and of recomputed segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.predict.closed_form import attention_memory, predict, why_not_predicted
from sysbench.core.predict.fit_grid import available_memory, fit, with_fragments
from sysbench.core.spec.spec import RunSpec, parse_spec


def bare(**values: object) -> RunSpec:
    return parse_spec({"workload": "attention", "d_model": 64, "device": "cuda", **values})


def test_the_account_of_a_write_up_closes_to_the_byte() -> None:
    # 2 B S^2 and 5 B S d, of Un's account at d 128, S 16384 (C6); row state is one row here.
    spec = bare(batch=8, context=16384, d_model=128)
    tensors = 4 * spec.batch * spec.context * spec.d_model
    before_backward = attention_memory(spec).saved_bytes + 5 * tensors
    assert before_backward == 17_179_869_184 + 335_544_320 + 8 * 16384 * 4


@given(batch=st.integers(1, 64), context=st.integers(1, 4096), heads=st.sampled_from([1, 2, 4, 8]))
def test_arithmetic_is_that_of_two_products_whatever_the_heads(
    batch: int, context: int, heads: int
) -> None:
    spec = bare(batch=batch, context=context, heads=heads)
    prediction = predict(spec)
    assert prediction.parameters == 0
    assert prediction.forward_flops == 2 * (2 * batch * context * context * 64)
    assert prediction.step_flops == 3 * prediction.forward_flops
    assert prediction.causal_step_flops == prediction.step_flops
    masked = predict(spec.changed(mask="causal"))
    assert 2 * masked.causal_step_flops == masked.step_flops == prediction.step_flops
    assert sum(row.bytes for row in prediction.ledger) == prediction.peak_bytes


def test_the_largest_batch_is_of_attention_too() -> None:
    spec = bare(context=1024)
    found, room = fit(spec, "batch", 2**33, predict), available_memory(spec, 2**33)
    here, next_one = (
        with_fragments(predict(spec.changed(batch=batch)).peak_bytes, room)
        for batch in (found.largest, found.largest + 1)
    )
    assert here <= room.least < next_one


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"attention": "sdpa"}, "fused attention"),
        ({"compile": "default"}, "torch.compile"),
        ({"workload": "accumulation", "d_model": 0}, "not accumulation"),
    ],
)
def test_what_is_not_predicted_says_why(values: dict[str, object], reason: str) -> None:
    assert reason in (why_not_predicted(bare(**values)) or "")


@given(layers=st.integers(1, 40), checkpoint=st.integers(1, 40), d_ff=st.integers(1, 64))
def test_recomputing_lowers_what_is_kept_and_never_what_is_done(
    layers: int, checkpoint: int, d_ff: int
) -> None:
    size = {"vocab": 8, "d_model": 16, "d_ff": d_ff, "layers": layers, "heads": 2}
    plain = parse_spec({**size, "device": "cuda", "context": 32})
    recomputed = plain.changed(checkpoint=min(layers, checkpoint))
    one, other = predict(plain), predict(recomputed)
    assert other.saved_activation_bytes < one.saved_activation_bytes
    assert other.step_flops == one.step_flops
    assert sum(row.bytes for row in other.ledger) == other.peak_bytes
    assert all(row.bytes > 0 for row in other.ledger)
