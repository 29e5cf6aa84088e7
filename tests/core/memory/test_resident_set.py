"""The closed form that a peak is made of, on the sizes of the cell with five answers."""

from __future__ import annotations

import pytest

from sysbench.core.memory.predicted import resident_set
from sysbench.core.record.record import LedgerRow, Memory, ModuleMemory, Timeline
from sysbench.core.spec.spec import RunSpec, StepKind
from tests.core.predict.writeups import Resident, writeup_peak_bytes, writeup_saved_bytes

SPEC = RunSpec(model="2.7B", device="cuda:0")
P = 4 * SPEC.dimensions.parameters


def memory_of(peak: int, saved: int, **ledger: int) -> Memory:
    """A block with a peak, what the step saved, and rows of the ledger by name."""
    rows = [LedgerRow(name.replace("_", " "), count) for name, count in ledger.items()]
    return Memory(
        source="cuda-snapshot",
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
        end_allocated_bytes=P,
        driver_used_bytes=None,
        baseline_bytes=0,
        peak_phase="forward",
        peak_ms=1.0,
        first_step_peak_bytes=peak,
        ledger=rows,
        card=[],
        columns={"peak": rows},
        modules=[ModuleMemory("model", P, 0, 0, saved)],
        largest=[],
        timeline=Timeline([], [], {}, []),
    )


# What a write-up reported of the cell, as its ledger would have shown it: P and A of it.
CELL: list[tuple[Resident, str, StepKind, dict[str, float]]] = [
    ("P+t", "P", "inference", {"parameters": 1}),
    ("P+A", "P + A", "forward", {"parameters": 1, "activations": 1}),
    ("P+2A", "P + 2A", "forward", {"parameters": 1, "activations": 2}),
    ("3P+A", "3P + A", "train", {"parameters": 1, "optimizer_state": 2, "activations": 1}),
    ("max(4P, P+A)", "4P", "train", {"parameters": 1, "optimizer_state": 2, "gradients": 1}),
]


@pytest.mark.parametrize(("resident", "name", "step", "parts"), CELL)
@pytest.mark.parametrize("context", [128, 256, 512])
def test_each_of_the_five_answers_is_named(
    context: int, resident: Resident, name: str, step: StepKind, parts: dict[str, float]
) -> None:
    spec = SPEC.changed(context=context, step=step)
    graph = writeup_saved_bytes(spec)
    rows = {
        part: round(count * (graph if part == "activations" else P))
        for part, count in parts.items()
    }
    saved = 0 if step == "inference" else graph
    forms, named = resident_set(memory_of(writeup_peak_bytes(spec, resident), saved, **rows), spec)
    assert named == name
    (form,) = (form for form in forms if form.name == named)
    assert abs(form.error) < 0.06


def test_what_is_resident_decides_where_two_forms_are_as_large() -> None:
    # A graph as large as the weights: P + 2A, 2P + A and 3P are one number.
    graph_alive = memory_of(3 * P, P, parameters=P, activations=2 * P)
    state_alive = memory_of(3 * P, P, parameters=P, optimizer_state=2 * P)
    assert resident_set(graph_alive, SPEC)[1] == "P + 2A"
    assert resident_set(state_alive, SPEC)[1] == "3P"


def test_forms_of_equal_size_are_distinguished_by_the_ledger() -> None:
    near = memory_of(round(4.02 * P), P, parameters=P, optimizer_state=2 * P, activations=P)
    assert resident_set(near, SPEC)[1] == "3P + A"


def test_autocasts_copies_are_a_term_of_their_own() -> None:
    rows = {"parameters": P, "autocast_weight_copies": P // 2, "activations": P}
    forms, named = resident_set(memory_of(round(2.5 * P), P, **rows), SPEC)
    assert named == "P + C + A"
    assert {form.name for form in forms} >= {"P + C", "P + C + 2A", "4P"}


def test_temporaries_that_weigh_more_match_nothing() -> None:
    forms, named = resident_set(memory_of(8 * P, P // 10, parameters=P), SPEC)
    assert named is None
    assert all(form.error < -0.25 for form in forms)


def test_without_weights_there_is_nothing_to_count_in() -> None:
    assert resident_set(memory_of(P, 0), SPEC) == ([], None)


def test_a_graph_that_nobody_saved_is_the_predicted_one() -> None:
    forms, _ = resident_set(memory_of(P, 0, parameters=P), SPEC.changed(step="inference"))
    names = [form.name for form in forms]
    assert names[:2] == ["P", "P + A"]
    assert forms[1].bytes > P
