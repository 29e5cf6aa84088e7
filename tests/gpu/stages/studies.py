"""The studies of the write-ups, their tables, and the published figures beside them.

Each study gets its part of the time, and what it leaves is the next one's. Cells with a published
figure go first.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core import Record, RunSpec
from sysbench.core.export.text_formats import escaped, table_as_markdown
from sysbench.core.formatting import counted
from sysbench.core.studies.formula import read_cell
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_directory import StudyDirectory, open_study, records_of
from sysbench.core.studies.study_grid import Cell, expand, with_overrides, with_variant
from sysbench.core.studies.study_report import StudyReport, study_report
from sysbench.core.studies.study_runner import CellEnded, run_study
from sysbench.core.tables.table import Table, is_number
from tests.gpu.stages.stage import Bench

PUBLISHED = Path(__file__).with_name("published.toml")
STUDIES = ("e2e", "precision", "memory", "attention", "warmup", "compile")
QUICK = ("accumulation",)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures of one source: what they are is reported at the top of ``published.toml``."""

    study: str
    source: str
    spec: dict[str, Any]
    key: str
    value: str
    values: dict[str, float]
    unit: str = "ms"

    def figure(self, spec: RunSpec) -> float | None:
        """The one of a cell of this spec, if there is one."""
        same = all(_short(getattr(spec, key)) == str(value) for key, value in self.spec.items())
        return self.values.get(_short(getattr(spec, self.key))) if same else None


def _short(value: object) -> str:
    """``large`` for ``cs336-2025/large``."""
    return str(value).rpartition("/")[2]


def load_published(path: Path = PUBLISHED) -> list[Published]:
    """Every table of the file."""
    return msgspec.convert(tomllib.loads(path.read_text())["tables"], list[Published])


def lines(bench: Bench) -> Iterator[str]:
    """Run each study for as long as it may take, and tell what it found."""
    published = load_published()
    names = QUICK if bench.is_quick else STUDIES
    variant = "small" if bench.is_quick or bench.device == "cpu" else ""
    for at, name in enumerate(names):
        share = max(0.0, bench.seconds_left) / (len(names) - at)
        mine = [one for one in published if one.study == name]
        directory = _filled(name, variant, bench.device, mine, share / 60)
        report = study_report(directory)
        if bench.is_null:
            yield from _outcomes(report)
        else:
            records = records_of(directory, report.cells)
            yield from study_lines(report, beside(report.cells, records, mine))


def _filled(
    name: str, variant: str, device: str, published: Sequence[Published], minutes: float
) -> StudyDirectory:
    study = with_overrides(with_variant(load_study(name), variant), {"device": device})
    cells = expand(study)
    cited = [cell for cell in cells if _is_cited(cell, published)]
    directory = open_study(study)
    for event in run_study(directory, [*cited, *cells], max_minutes=minutes):
        if isinstance(event, CellEnded):
            text = f"{name} {event.done}/{event.total} {event.entry.status} {event.cell.words}"
            print(text, file=sys.stderr, flush=True)
    return directory


def _is_cited(cell: Cell, published: Sequence[Published]) -> bool:
    return cell.spec is not None and any(one.figure(cell.spec) is not None for one in published)


def beside(
    cells: Sequence[Cell], records: Mapping[str, Record], published: Sequence[Published]
) -> Table:
    """Each published figure beside the measured one; empty where there is none yet."""
    rows = []
    for one, cell in itertools.product(published, cells):
        figure = one.figure(cell.spec) if cell.spec else None
        if figure is None:
            continue
        record = records.get(cell.id)
        found = read_cell(record, one.value, one.unit) if record else None
        measured = found if is_number(found) else None
        status = "waits" if record is None else record.status
        rows.append(
            (
                cell.words,
                f"{one.value.removeprefix('timing.')}, {one.unit}",
                status if measured is None else f"{measured:.4g}",
                f"{figure:g}",
                None if measured is None else f"{measured / figure:.2f}",
                one.source,
            )
        )
    return Table(
        name="published",
        title="Beside published figures",
        columns=("cell", "quantity", "measured", "published", "ratio", "source"),
        rows=tuple(rows),
    )


def study_lines(report: StudyReport, published: Table) -> Iterator[str]:
    """One study: its tables, and what was published of it."""
    yield from _heading(report)
    yield from (f"\n**{escaped(caution)}**" for caution in report.cautions)
    for table in (*report.shown, published):
        if table.rows:
            yield from ("", f"#### {escaped(table.title)}", "", table_as_markdown(table))
    yield ""


def _heading(report: StudyReport) -> Iterator[str]:
    study, progress = report.study, report.progress
    yield from (f"### {escaped(study.name)}: {escaped(study.title)}", "")
    size = f", variant {study.variant}" if study.variant else ""
    yield f"{progress.done} of {progress.total} cells have their value{size}."


def _outcomes(report: StudyReport) -> Iterator[str]:
    """How the cells ended, without the tables: most of these are made of times."""
    yield from _heading(report)
    counts = Counter(report.progress.statuses.values())
    yield f"{', '.join(f'{count} {status}' for status, count in counts.items())}."
    for cell in report.cells:
        entry = report.entries.get(cell.id)
        if entry is not None and entry.status == "failed":
            yield f"- {escaped(cell.words)}: {escaped(entry.detail)}"
    count = sum(len(table.rows) for table in report.shown)
    tables = f"{counted(len(report.shown), 'table')} of {counted(count, 'row')}"
    yield f"Left out: {tables}, for the times in them."
    yield ""
