"""The largest that fits, tables of predictions, and roofline times."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sysbench.core.errors import SpecError
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.dry_run_client import (
    ExactPrediction,
    PhasePrediction,
    ProductCount,
    roof_ms,
)
from sysbench.core.predict.fit_grid import (
    available_memory,
    closed_form_fits,
    fit,
    fit_cells,
    largest,
    parse_axes,
    value_of,
    with_fragments,
    with_value,
)
from sysbench.core.predict.requests import Requests
from sysbench.core.record.environment import Roof
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.estimate_tables import fit_table, grid_table

MIB, GIB = 2**20, 2**30

AN_EXACT_ONE = ExactPrediction(
    parameters=0,
    parameter_bytes=0,
    forward_flops=0,
    causal_forward_flops=0,
    backward_flops=0,
    step_flops=0,
    saved_activation_bytes=0,
    ledger=[],
    peak_bytes=0,
    peak_phase="",
    peak_place="",
    phases=[],
    block_ledger=None,
)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_the_largest_is_found_from_any_guess_with_few_questions(limit: int, guess: int) -> None:
    asked = []

    def is_fine(number: int) -> bool:
        assert number >= 1
        asked.append(number)
        return number <= limit

    assert largest(is_fine, guess) == limit
    assert len(asked) <= 2 * abs(limit - guess).bit_length() + 3


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["batch", "context"]),
    st.sampled_from(["tiny", "cs336-2025/small", "2.7B"]),
    st.sampled_from(["fp32", "bf16"]),
    st.sampled_from(["naive", "sdpa"]),
    st.sampled_from(["inference", "forward", "train"]),
    st.integers(2**20, 100 * GIB),
)
def test_what_fits_fits_and_one_more_does_not(
    key: Any, model: str, precision: str, attention: str, step: str, capacity: int
) -> None:
    spec = RunSpec(
        model=model,
        precision=precision,  # type: ignore[arg-type]
        attention=attention,  # type: ignore[arg-type]
        step=step,  # type: ignore[arg-type]
        device="cuda:0",
    )
    found, room = fit(spec, key, capacity, predict), available_memory(spec, capacity)
    assert room.least < room.most <= capacity
    if found.largest:
        assert predict(spec.changed(**{key: found.largest})).peak_bytes == found.peak_bytes
        assert found.peak_bytes is not None and closed_form_fits(found.peak_bytes, room)
    else:
        assert found.peak_bytes is None
    assert found.next == found.largest + 1
    assert found.next_peak_bytes == predict(spec.changed(**{key: found.next})).peak_bytes
    assert found.next_peak_bytes is not None
    assert found.over_bytes == with_fragments(found.next_peak_bytes, room) - room.least > 0
    assert found.beyond is not None and found.beyond >= found.next
    assert predict(spec.changed(**{key: found.beyond})).peak_bytes > room.most
    if found.beyond > 1:
        assert predict(spec.changed(**{key: found.beyond - 1})).peak_bytes <= room.most


@pytest.mark.parametrize(
    ("fits_again", "beyond"),
    [(range(71, 76), 76), (range(0), 69), (range(100, 101), 101), (range(53, 55), 69)],
)
def test_beyond_is_past_every_value_that_fits_again(fits_again: range, beyond: int) -> None:
    """Up to 50 what the allocator needs is the tensors, then twice as much, but for some."""

    def predict_one(spec: RunSpec) -> ExactPrediction:
        value = spec.batch
        needed = value * (1 if value <= 50 or value in fits_again else 2) * MIB
        return structs.replace(
            AN_EXACT_ONE,
            peak_bytes=value * MIB,
            requests=Requests(build=[needed], state=[], step=[], marks=[]),
        )

    spec = RunSpec(device="cuda:0", memory_limit=100 * MIB)
    found = fit(spec, "batch", 100 * MIB, predict_one, guess=10)
    assert found.largest in (50, fits_again.stop - 1)
    # From the bound that the tensors set, 101, values are tried down to 69.
    assert found.beyond == beyond


def test_the_largest_number_of_layers_is_of_the_same_model() -> None:
    spec = RunSpec(model="cs336-2025/xl", device="cuda:0")
    found = fit(spec, "layers", 80 * GIB, predict)
    at, after = (predict(spec.changed(layers=found.largest + more)) for more in (0, 1))
    assert found.peak_bytes == at.peak_bytes < 80 * GIB
    assert found.next_peak_bytes == after.peak_bytes
    assert found.over_bytes is not None and found.over_bytes > 0


@pytest.mark.parametrize(
    ("model", "given", "then"),
    [
        ("nano.py:make", "", '{"layers": 7}'),
        ("nano.py:make", '{"n_layer": 2, "width": 8}', '{"n_layer": 7, "width": 8}'),
        ("hf:config.json", "", '{"num_hidden_layers": 7}'),
    ],
)
def test_layers_of_a_model_of_yours_are_an_argument_of_it(
    model: str, given: str, then: str
) -> None:
    spec = RunSpec(model=model, model_args=given)
    assert value_of(spec, "layers") == (2 if given else 1)
    changed = with_value(spec, "layers", 7)
    assert json.loads(changed.model_args) == json.loads(then)
    assert value_of(changed, "layers") == 7


def test_a_key_that_allows_no_more_has_no_next() -> None:
    spec = RunSpec(vocab=1, d_model=2, d_ff=1, layers=1, heads=1, step="inference", device="cpu")
    found = fit(spec, "batch", 2**60, predict)
    assert (found.largest, found.next, found.over_bytes) == (2**20, None, None)
    assert ("next batch", None, "") in fit_table(found).rows


def test_what_is_not_predicted_is_not_fitted() -> None:
    with pytest.raises(SpecError, match="--fit = 'batch'"):
        fit(RunSpec(compile="default"), "batch", GIB, predict)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["context"], ["--table = 'context'", "KEY=VALUE"]),
        (["context=1,,2"], ["--table", "KEY=VALUE"]),
        (["context=0"], ["context = '0'", "from 1"]),
        (["contxt=1"], ["contxt", "did you mean 'context'?"]),
        (["precision=fp31"], ["precision = 'fp31'", "fp32, tf32"]),
        (["model=tinny"], ["model = 'tinny'", "did you mean 'tiny'?"]),
        (["device=cpu"], ["--table", "device"]),
        (["batch=1", "batch=2"], ["--table = 'batch'", "once"]),
        (["batch=" + ",".join(map(str, range(1, 502)))], ["501 cells", "at most 500"]),
    ],
)
def test_a_wrong_axis_names_the_key_and_what_is_allowed(texts: list[str], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_axes(texts)
    assert all(word in str(caught.value) for word in words)


def test_a_table_has_a_cell_for_every_combination_in_order() -> None:
    spec = RunSpec(device="cpu")
    axes = parse_axes(["context=64, 128,64", "precision=fp32,tf32"])
    cells = fit_cells(spec, axes, 40 * 2**20, predict)
    assert [tuple(cell.settings.values()) for cell in cells] == [
        *((64, "fp32"), (64, "tf32"), (128, "fp32"), (128, "tf32"))
    ]
    for cell in cells:
        if cell.settings["precision"] == "tf32":  # no CPU has it
            assert (cell.peak_bytes, cell.fits) == (None, None)
            assert "CUDA" in cell.why
        else:
            prediction = predict(spec.changed(**cell.settings))
            assert (cell.peak_bytes, cell.peak_phase) == (
                prediction.peak_bytes,
                prediction.peak_phase,
            )
            assert cell.fits == (prediction.peak_bytes <= 40 * 2**20)
    table = grid_table(cells)
    assert table.columns == ("context", "precision", "peak_bytes", "peak_phase", "fits", "note")


def test_a_cells_own_limit_is_its_capacity_and_an_unknown_one_fits_nothing() -> None:
    spec = RunSpec(device="cpu")
    peak = predict(spec).peak_bytes
    axes = parse_axes([f"memory_limit=0,{peak - 1},{peak}"])
    assert [cell.fits for cell in fit_cells(spec, axes, None, predict)] == [None, False, True]


def test_roofline_time_is_the_longer_of_both_for_each_product() -> None:
    roof = Roof(precision="bf16", peak_flops=1e12, peak_source="", bandwidth=1e9)
    phase = PhasePrediction(
        phase="forward",
        peak_bytes=0,
        block_bytes=None,
        place="",
        ledger=[],
        flops=0,
        products=[
            ProductCount(dtype="bfloat16", flops=10**12, bytes=10**6, count=2),  # 1 s, 1 ms
            ProductCount(dtype="bfloat16", flops=10**9, bytes=10**9, count=3),  # 1 ms, 1 s
        ],
        moved_bytes=5 * 10**8,
    )
    assert roof_ms(phase, roof) == pytest.approx(1e3 * (2 + 3 + 0.5))
    assert roof_ms(phase, Roof(precision="bf16", peak_flops=1e12, peak_source="")) is None
