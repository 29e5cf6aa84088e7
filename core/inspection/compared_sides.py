"""Both sides of a comparison, each a run or an imported file, and how B differs from A."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from sysbench.core.compare.compared_records import NOTHING_KNOWN, Known
from sysbench.core.compare.comparison import Comparison, compare
from sysbench.core.compare.difference import DifferenceSide, difference, under_verdict
from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.errors import NotFoundError
from sysbench.core.experiments.experiment_report import shared_experiment
from sysbench.core.experiments.noise import known_noise
from sysbench.core.inspection.decoding import Decoding, bundled_run
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.run_directory import RunDirectory, find_run, load_record

ComparedSource = RunDirectory | Path
"""A run, or a file that `inspect` reads."""


def find_source(text: str) -> ComparedSource:
    """Return the file of this path, or the run of this name; NotFoundError if there is neither."""
    path = Path(text)
    if path.is_file():
        return bundled_run(path) or path
    try:
        return find_run(text)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; no file has that name") from None


def read_sides(
    a: ComparedSource, b: ComparedSource, show: Callable[[Progressed], None] = lambda _: None
) -> tuple[DifferenceSide, DifferenceSide]:
    """Read both sides. The record of a file has an empty spec, and its path as the id.

    Tables of a file that marks steps are per step if those of the other side are, too.
    """
    first, second = (_read(source, show) for source in (a, b))
    spans = [_marked_range(side) for side in (first, second)]
    if all(span or _is_per_step(side) for span, side in zip(spans, (first, second), strict=True)):
        first, second = (
            _read(source, show, steps) if steps else side
            for source, steps, side in zip((a, b), spans, (first, second), strict=True)
        )
    return first, second


def _is_per_step(side: DifferenceSide) -> bool:
    return side.kernels is not None and side.kernels.whole == "step"


def _marked_range(side: DifferenceSide) -> tuple[int, int] | None:
    """First and last marked step of tables that cover a whole file."""
    kernels = side.kernels
    if kernels is None or kernels.whole == "step" or kernels.marked_steps is None:
        return None
    numbers = [row.number for row in kernels.marked_steps.rows if row.number is not None]
    return (min(numbers), max(numbers)) if numbers else None


def _read(
    source: ComparedSource, show: Callable[[Progressed], None], steps: tuple[int, int] | None = None
) -> DifferenceSide:
    if isinstance(source, RunDirectory):
        record = load_record(source)
        return DifferenceSide(record, layer_rows(source, record))
    decoding = Decoding(source, steps=steps)
    record = msgspec.structs.replace(decoding.run(show).as_record(), id=str(source))
    return DifferenceSide(record, layer_rows(decoding.entry.as_run, record))


def compare_sides(
    a: DifferenceSide, b: DifferenceSide, *, smallest: float | None = None
) -> tuple[Comparison, Known]:
    """Compare B with A in full; return also the noise that the verdict used.

    The smallest difference that matters is by default that of the experiment that measured both,
    else 1 %.
    """
    known = NOTHING_KNOWN
    if a.record.spec and b.record.spec:
        known = known_noise(a.record, b.record)
        experiment = shared_experiment(a.record, b.record)
        if smallest is None and experiment is not None:
            smallest = experiment.experiment().smallest
    comparison = compare(a.record, b.record, known, smallest=smallest or MIN_EFFECT)
    rows = under_verdict(difference(a, b), a.record, b.record, comparison.step)
    return msgspec.structs.replace(comparison, difference=rows), known
