"""After how many steps compiling pays: the arithmetic, and when it is not known."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.compared_records import Known
from sysbench.core.compare.comparison import break_even
from sysbench.core.record.record import Record
from tests import factories

HOW = "sysbench-tui run"


def record(median: float, *, width: float = 0.001, **compiled: float | None) -> Record:
    """A run of a step that long; with compile seconds if it is compiled."""
    step = factories.spread(median, median * (1 - width), median * (1 + width), n=10)
    timing = factories.timing(step, phases={}, first_step_ms=median, samples_ms=[median])
    block = factories.compiled(
        cold_seconds=compiled.get("cold"),
        warm_seconds=compiled.get("warm"),
        missing={"warm_seconds": "no second process"},
    )
    return factories.record(
        id=f"run-{median:g}",
        timing=timing,
        compile=block if compiled else None,
    )


@given(
    eager=st.floats(1.0, 1e4),
    share=st.floats(0.05, 0.95),
    cold=st.floats(0.01, 1e4),
)
def test_the_saving_of_the_steps_covers_the_compile_time(
    eager: float, share: float, cold: float
) -> None:
    found = break_even(record(eager * share, cold=cold), record(eager), HOW)
    assert found.saved_ms is not None and found.steps_cold is not None
    assert found.steps_cold * found.saved_ms >= cold * 1e3 * (1 - 1e-9)
    assert (found.steps_cold - 1) * found.saved_ms < cold * 1e3 * (1 + 1e-9)
    assert math.isclose(found.speed_up or 0.0, 1 / share)


def test_a_time_that_was_not_measured_has_its_reason() -> None:
    found = break_even(record(50.0, cold=10.0), record(60.0), HOW)
    assert (found.steps_cold, found.steps_warm) == (1000, None)
    assert found.missing == {"steps_warm": "no second process"}
    assert found.eager_run == "run-60"


@pytest.mark.parametrize(
    ("eager_ms", "width", "reason"),
    [(40.0, 0.001, "not shorter"), (51.0, 0.05, "cannot be distinguished")],
)
def test_it_never_pays_where_nothing_is_surely_saved(
    eager_ms: float, width: float, reason: str
) -> None:
    compiled = record(50.0, width=width, cold=10.0, warm=1.0)
    found = break_even(compiled, record(eager_ms, width=width), HOW)
    assert (found.steps_cold, found.steps_warm) == (None, None)
    assert reason in found.missing["steps_cold"]


def test_without_an_eager_run_the_command_that_makes_one_is_named() -> None:
    found = break_even(record(50.0, cold=10.0), None, HOW)
    assert found.missing["eager_ms"] == HOW
    assert (found.compiled_ms, found.steps_cold) == (50.0, None)


def test_a_row_that_ran_eagerly_never_pays() -> None:
    compiled = record(50.0, cold=10.0)
    assert compiled.compile is not None
    block = msgspec.structs.replace(compiled.compile, extent="none", fell_back=True)
    found = break_even(msgspec.structs.replace(compiled, compile=block), record(60.0), HOW)
    assert found.missing["steps_cold"] == "nothing ran compiled"


COMPILED, EAGER = record(50.0, cold=10.0), record(60.0)


def of_rounds(single: Record, medians: list[float]) -> Record:
    """The run as one of these processes."""
    return msgspec.structs.replace(single, timing=factories.record_of_rounds(medians).timing)


def test_one_process_each_is_marked_untested_and_keeps_its_numbers() -> None:
    found = break_even(record(50.0, cold=10.0), record(60.0), HOW)
    assert found.tested == "1 run each: not tested"
    assert (found.steps_cold, found.saved_ms) == (1000, 10.0)


def test_rounds_that_show_a_saving_are_reported_with_its_interval() -> None:
    fast, slow = [50.0, 50.1, 49.9, 50.2], [60.0, 60.1, 59.9, 60.2]
    found = break_even(of_rounds(COMPILED, fast), of_rounds(EAGER, slow), HOW)
    assert found.verdict is not None and found.verdict.verdict == "faster"
    assert found.tested == "faster: -16.7 % (95 % CI -17.1 to -16.2 %); 4 and 4 rounds"
    assert found.steps_cold == 1000


def test_rounds_that_show_no_saving_have_no_break_even() -> None:
    fast, slow = [50.0, 62.0, 49.0, 63.0], [61.0, 51.0, 65.0, 53.0]
    found = break_even(of_rounds(COMPILED, fast), of_rounds(EAGER, slow), HOW)
    assert found.steps_cold is None
    assert "no saving is shown: inconclusive" in found.missing["steps_cold"]


def test_the_spread_that_is_known_of_earlier_processes_decides_too() -> None:
    known = Known(a_ms=(60.0, 60.1, 59.9, 60.2, 59.8))
    found = break_even(record(50.0, cold=10.0), record(60.0), HOW, known)
    assert "by the variation of earlier runs" in found.tested
    assert found.steps_cold == 1000
