"""A cell is called the one with the least time only where its rounds bear it out."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from sysbench.core.record.record import Record
from sysbench.core.studies.cell_values import values_of
from sysbench.core.studies.ratios import Best, best_of, sentence_of, ways_in
from sysbench.core.studies.schema import Axis, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.study_grid import expand
from tests import factories

KERNELS = ("naive", "sdpa-flash", "sdpa-math", "sdpa")
LEVELS = (10.0, 12.0, 9.0, 11.0, 15.0, 13.0, 10.5, 9.5)


def study(*contexts: int) -> Study:
    """Attention kernels by contexts, with their step times and peaks."""
    columns = (
        StudyColumn(name="Step (ms)", value="timing.step.median_ms"),
        StudyColumn(name="Peak", value="memory.peak_allocated_bytes"),
    )
    axes = tuple(
        Axis(name=key, points=tuple(Point(label=str(one), settings={key: one}) for one in values))
        for key, values in {"context": contexts, "attention": KERNELS}.items()
    )
    table = TableLayout(name="t", title="", rows=("context", "attention"), columns=columns)
    return Study(name="s", title="", axes=axes, tables=(table,), fixed={"device": "cpu"})


def found(
    of: Study, times: Mapping[str, Sequence[float]], rounds: int, missing: Sequence[str] = ()
) -> list[Best]:
    """The best of a study whose kernels take these times, round by round."""
    cells = expand(of, repeat=rounds)
    records: dict[str, Record] = {}
    for cell in cells:
        assert cell.spec is not None
        own = times[cell.point["attention"]]
        if cell.point["attention"] not in missing and cell.repeat < len(own):
            timing = factories.timing(factories.spread(own[cell.repeat]))
            records[cell.id] = factories.record(cell.spec, timing=timing)
    return list(best_of(of, cells, records))


def scaled(factor: float, rounds: int = 8) -> list[float]:
    return [factor * level for level in LEVELS[:rounds]]


CLEAR = {"naive": 1.5, "sdpa-flash": 1.0, "sdpa-math": 1.3, "sdpa": 1.05}


def test_the_least_time_is_told_with_the_next_one_and_the_number_of_comparisons() -> None:
    of = study(32)
    times = {name: scaled(factor) for name, factor in CLEAR.items()}
    (best,) = found(of, times, 8)
    assert (best.label, best.next_label, best.others) == ("sdpa-flash", "sdpa", 3)
    value = values_of(of)[best.value]
    assert sentence_of(best, value) == (
        "sdpa-flash has the least step median of 4 points of attention; sdpa comes next "
        "with 1.05 times as much (1.050 to 1.050; 8 rounds each, 3 comparisons)."
    )
    assert len(found(study(32, 64), times, 8)) == 2  # one for each context


def test_nothing_is_the_least_before_all_rounds_ran_or_where_two_are_alike() -> None:
    times = {name: scaled(factor) for name, factor in CLEAR.items()}
    assert found(study(32), times, 9) == []  # the ninth round waits
    assert found(study(32), times | {"sdpa": scaled(1.0)}, 8) == []
    assert found(study(32), {name: own[:1] for name, own in times.items()}, 1) == []


def test_of_kernels_that_are_the_same_few_are_called_the_least() -> None:
    draw = random.Random(7)
    of = study(32)
    wrong = sum(
        bool(
            found(
                of,
                {
                    name: [level * math.exp(draw.gauss(0, 0.05)) for level in LEVELS]
                    for name in KERNELS
                },
                8,
            )
        )
        for _ in range(150)
    )
    assert wrong / 150 <= 0.05


def test_of_two_sizes_none_is_the_better() -> None:
    assert [axis.name for axis in ways_in(study(32, 64))] == ["attention"]
