"""Sentences and ratios of two cells claim what their rounds bear out, and nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.export.text_formats import table_as_csv
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.studies.ratios import (
    Rounds,
    merge_repeats,
    ratio_of,
    rounds_of,
)
from sysbench.core.studies.schema import Axis, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.study_grid import Cell, expand
from sysbench.core.studies.study_table import fillings
from sysbench.core.studies.study_text import cautions_of, sentences_of
from tests import factories

PEAK = "memory.peak_allocated_bytes"
STEP = "timing.step.median_ms"


def study(value: str = STEP) -> Study:
    """Two precisions by two contexts, with the ratio of the precisions."""
    columns = (
        StudyColumn(name="FP32", value=value, where={"precision": "fp32"}),
        StudyColumn(name="BF16", value=value, where={"precision": "bf16"}),
        StudyColumn(name="Speedup", ratio=("FP32", "BF16")),
    )
    axes = tuple(
        Axis(name=key, points=tuple(Point(label=str(one), settings={key: one}) for one in values))
        for key, values in {"context": (32,), "precision": ("fp32", "bf16")}.items()
    )
    table = TableLayout(name="t", title="", rows=("context",), columns=columns)
    return Study(name="s", title="", axes=axes, tables=(table,), fixed={"device": "cpu"})


def timed(cell: Cell, median_ms: float) -> Record:
    assert cell.spec is not None
    step = factories.spread(median_ms)
    return factories.record(cell.spec, id=cell.id, timing=factories.timing(step))


def filled(
    of: Study, figures: Mapping[str, Sequence[float]]
) -> tuple[list[Cell], dict[str, Record]]:
    """The cells and records of a study whose precisions have these figures, round by round."""
    cells = expand(of, repeat=max(map(len, figures.values())))
    records = {}
    for cell in cells:
        own = figures[cell.point["precision"]]
        if cell.repeat < len(own):
            records[cell.id] = timed(cell, own[cell.repeat])
    return cells, records


def best_sentence(figures: Mapping[str, Sequence[float]]) -> str:
    of = study()
    cells, records = filled(of, figures)
    return next(iter(sentences_of(fillings(of, cells, records), cells, records)))


LEVELS = (10.0, 12.0, 9.0, 11.0, 15.0, 13.0)
"""Passes that differ by more than the cells do."""

SENTENCES = {
    "one": ((10.0,), (8.0,), "FP32 10.00 ms, BF16 8.000 ms; 1 run each: not tested."),
    "three": (
        *(LEVELS[:3], (8.0, 9.6, 7.2)),
        "FP32 10.00 ms, BF16 8.000 ms; not decidable: 3 rounds each, 6 are enough.",
    ),
    "four apart": (
        *((10.0, 10.1, 10.2, 10.3), (5.0, 5.1, 5.05, 5.15)),
        "FP32 is 2.00 times BF16 (1.94 to 2.06; 4 rounds each).",
    ),
    "differs": (
        *(LEVELS, [level / (1.25 + n / 100) for n, level in enumerate(LEVELS)]),
        "FP32 is 1.27 times BF16 (1.25 to 1.30; 6 rounds each).",
    ),
    "by little": (
        *(LEVELS, [level / (1.002 + n / 200) for n, level in enumerate(LEVELS)]),
        "FP32 is 1.014 times BF16 (1.002 to 1.027; 6 rounds each).",
    ),
    "same": (
        *(LEVELS, [level * (1 + (-1) ** n / 1000) for n, level in enumerate(LEVELS)]),
        "FP32 and BF16 are the same within 1.0 %: 6 rounds each (ratio 0.999 to 1.001).",
    ),
    "nearly": (
        *(LEVELS, [level * (1 + (-1) ** n / 50) for n, level in enumerate(LEVELS)]),
        "FP32 11.50 ms, BF16 11.27 ms; not decidable yet: 6 rounds each, about 39 more rounds "
        "would decide a 1.0 % difference (ratio 0.98 to 1.02).",
    ),
    "either": (
        *(LEVELS, [level * (1 + (-1) ** n / 10) for n, level in enumerate(LEVELS)]),
        "FP32 11.50 ms, BF16 10.90 ms; not decidable yet: 6 rounds each, ±7.8 % between them; 100 "
        "rounds decide a difference of 3.2 % (ratio 0.91 to 1.11).",
    ),
    "a cell that waits": (
        *(LEVELS, LEVELS[:4]),
        "FP32 11.50 ms, BF16 10.50 ms; not decidable yet: 4 and 6 of 6 rounds.",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_sentence_says_what_the_rounds_bear_out(case: str) -> None:
    first, second, sentence = SENTENCES[case]
    assert best_sentence({"fp32": first, "bf16": second}) == f"32: {sentence}"


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        (("a1", "a1"), "FP32 is 1.27 times BF16 (1.25 to 1.30; 6 rounds each)."),
        (("a1", "b2"), "FP32 11.50 ms, BF16 9.059 ms; measured on 2 machines: not tested."),
        (("a1", None), "FP32 11.50 ms, BF16 9.059 ms; measured on 2 machines: not tested."),
    ],
)
def test_machines_are_not_told_as_a_difference_of_the_cells(
    nodes: tuple[str | None, str | None], sentence: str
) -> None:
    of = study()
    faster = [level / (1.25 + n / 100) for n, level in enumerate(LEVELS)]
    cells, records = filled(of, {"fp32": LEVELS, "bf16": faster})
    for cell in cells:
        node = nodes[cell.point["precision"] == "bf16" and cell.repeat == 4]
        environment = {"cluster": {"node": node}} if node else {}
        records[cell.id] = msgspec.structs.replace(records[cell.id], environment=environment)
    said = next(iter(sentences_of(fillings(of, cells, records), cells, records)))
    assert said == f"32: {sentence}"
    cautions = [text for text in cautions_of(of, cells, records) if "machines of a cluster" in text]
    assert len(cautions) == (nodes[0] != nodes[1])


def with_peak(record: Record, peak_bytes: int, template: Record) -> Record:
    assert template.memory is not None
    memory = msgspec.structs.replace(template.memory, peak_allocated_bytes=peak_bytes)
    return msgspec.structs.replace(record, memory=memory)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ((), "FP32 is 0.67 times BF16 (counted bytes)."),
        ((3072, 3072), "FP32 is 0.67 times BF16 (counted bytes, the same in all 3 rounds)."),
        (
            (3072, 3078),
            "FP32 2.00 KiB, BF16 3.00 KiB; not decidable: 3 rounds each, 6 are enough; the bytes "
            "differ between rounds, by 0.20 %.",
        ),
    ],
)
def test_counted_bytes_need_no_test_unless_they_differ(
    others: Sequence[int], sentence: str, gpu_run: RunDirectory
) -> None:
    of = study(PEAK)
    cells, records = filled(of, {name: [1.0] * (1 + len(others)) for name in ("fp32", "bf16")})
    for cell in cells:
        peak = [3072, *others][cell.repeat] if cell.point["precision"] == "bf16" else 2048
        records[cell.id] = with_peak(records[cell.id], peak, gpu_run.record())
    said = next(iter(sentences_of(fillings(of, cells, records), cells, records)))
    assert said == f"32: {sentence}"


@pytest.mark.parametrize(
    ("rounds", "shown", "legend"),
    [
        (1, "1.25 *", ("* 1 run each: not tested",)),
        (2, "1.25 *", ("* not decidable: 2 rounds each, 6 are enough",)),
        (6, "1.27 (1.25–1.30)", ()),
    ],
)
def test_a_ratio_is_shown_with_its_interval_or_with_a_mark(
    rounds: int, shown: str, legend: tuple[str, ...]
) -> None:
    of = study()
    figures = {
        "fp32": LEVELS[:rounds],
        "bf16": [
            level / (1.25 + (n / 100 if rounds > 2 else 0))
            for n, level in enumerate(LEVELS[:rounds])
        ],
    }
    (filling,) = fillings(of, *filled(of, figures))
    assert filling.shown.column("Speedup") == [shown]
    assert filling.legend == legend
    assert not [name for name in filling.shown.columns if name.startswith("Speedup ")]
    assert filling.shown.sort_keys["Speedup"] == tuple(filling.table.column("Speedup"))
    (row,) = csv.DictReader(io.StringIO(table_as_csv(filling.table).decode()))
    assert float(row["Speedup"]) == pytest.approx(1.275 if rounds == 6 else 1.25, abs=0.01)
    assert bool(row["Speedup low"]) == bool(row["Speedup high"]) == (rounds == 6)
    assert row["Speedup tested"] == (legend[0][2:] if legend else "differs: 6 rounds each")


times = st.floats(0.1, 1e4)
orders = st.lists(st.tuples(times, times), min_size=1, max_size=12)


@given(orders, st.randoms(use_true_random=False))
def test_rounds_are_paired_by_their_pass_in_whatever_order_they_are_read(
    pairs: list[tuple[float, float]], shuffled: object
) -> None:
    figures = {"fp32": [a for a, _ in pairs], "bf16": [b for _, b in pairs]}
    cells, records = filled(study(), figures)
    sides = {}
    for precision in ("fp32", "bf16"):
        own = [cell for cell in cells if cell.point["precision"] == precision]
        shuffled.shuffle(own)  # type: ignore[attr-defined]
        sides[precision] = rounds_of(own, records, median_of, is_counted=False)
    assert sides["fp32"].by_pass == dict(enumerate(figures["fp32"]))
    there = ratio_of(sides["fp32"], sides["bf16"])
    back = ratio_of(sides["bf16"], sides["fp32"])
    assert there is not None and back is not None
    assert there.state == back.state
    assert (there.low is None) == (len(pairs) < 4)
    assert there.value * back.value == pytest.approx(1)
    if there.low is not None and there.high is not None and back.high is not None:
        assert there.low <= there.value <= there.high
        assert there.low * back.high == pytest.approx(1)


def median_of(record: Record) -> float | None:
    return record.timing.step.median_ms if record.timing else None


@given(st.lists(times, min_size=6, max_size=10), st.floats(1.02, 4))
def test_a_level_of_a_pass_hides_no_difference_and_makes_none(
    levels: list[float], factor: float
) -> None:
    slower = Rounds({n: factor * level for n, level in enumerate(levels)}, levels)
    plain = Rounds(dict(enumerate(levels)), levels)
    ratio, same = ratio_of(slower, plain), ratio_of(plain, plain)
    assert ratio is not None and same is not None
    assert (ratio.state, same.state) == ("differs", "same")
    assert ratio.low == pytest.approx(factor) and ratio.high == pytest.approx(factor)


def test_rounds_that_a_run_has_itself_are_processes_of_their_cell() -> None:
    of = study()
    cells, records = filled(of, {"fp32": [1.0], "bf16": [1.0]})
    medians = {"fp32": [10.0, 10.1, 10.2, 10.3], "bf16": [5.0, 5.1, 5.05, 5.15]}
    for cell in cells:
        assert cell.spec is not None
        own = factories.record_of_rounds(medians[cell.point["precision"]], cell.spec)
        assert own.timing is not None
        disturbed = factories.rounds([500.0], disturbed="a neighbour came")
        timing = msgspec.structs.replace(own.timing, rounds=[*own.timing.rounds, *disturbed])
        records[cell.id] = msgspec.structs.replace(own, timing=timing)
    said = next(iter(sentences_of(fillings(of, cells, records), cells, records)))
    assert said == "32: FP32 is 2.00 times BF16 (1.94 to 2.06; 4 rounds each)."


def test_repeats_become_the_rounds_of_one_run() -> None:
    of = study()
    cells, records = filled(of, {"fp32": LEVELS, "bf16": LEVELS})
    own = {cell.repeat: records[cell.id] for cell in cells if cell.point["precision"] == "fp32"}
    record = merge_repeats("s", own)
    assert record.timing is not None
    assert record.timing.interval_of == "rounds"
    assert [row.block for row in record.timing.rounds] == list(range(6))
    assert record.timing.step.median_ms == 11.5
    assert merge_repeats("s", {0: own[0]}) == own[0]
