"""Runs the studies that have published figures, and writes ``docs/validation/<gpu>.md``.

``make gpu-check`` runs it after the gpu-marked tests. Each study gets its part of the minutes,
and what it leaves is the next one's; cells with a published figure go first. With ``--home`` a
second start goes on where the first one stopped. ``--device cpu --variant small --out FOLDER``
goes through the same motions without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core import Record, RunSpec, SysbenchError, run
from sysbench.core.export.text_formats import escaped, table_as_markdown
from sysbench.core.machine.devices import resolve_device
from sysbench.core.record.environment import device_name
from sysbench.core.studies.file.schema import load_study
from sysbench.core.studies.report.report import Report, report_of
from sysbench.core.studies.run.grid import Cell, expand, with_overrides, with_variant
from sysbench.core.studies.run.runner import CellEnded, run_study
from sysbench.core.studies.run.state import StudyDirectory, open_study, records_of
from sysbench.core.studies.values.formula import converted, evaluate, source_unit
from sysbench.core.tables.table import Table, is_number

ROOT = Path(__file__).parents[2]
STUDIES = ("e2e", "precision", "memory", "attention", "warmup", "compile")
TRACED = ("cs336-2025/small", "cs336-2025/medium")
MINUTES = 25.0
LARGEST_FIXTURE_BYTES = 2**20


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures of one source: what they are is told at the top of ``published.toml``."""

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


def load_published(path: Path = ROOT / "tests" / "gpu" / "published.toml") -> list[Published]:
    """Every table of the file."""
    return msgspec.convert(tomllib.loads(path.read_text())["tables"], list[Published])


def fill(
    names: Sequence[str],
    device: str,
    variant: str,
    published: Sequence[Published],
    minutes: float,
    say: Callable[[str], object],
) -> Iterator[StudyDirectory]:
    """Run each study for as long as it may take, and yield it."""
    end = time.monotonic() + 60 * minutes
    for at, name in enumerate(names):
        study = with_overrides(with_variant(load_study(name), variant), {"device": device})
        known = [one for one in published if one.study == name]
        cells = expand(study)
        cited = [cell for cell in cells if _is_cited(cell, known)]
        directory = open_study(study)
        share = max(0.0, end - time.monotonic()) / (len(names) - at)
        for event in run_study(directory, [*cited, *cells], max_minutes=share / 60):
            if isinstance(event, CellEnded):
                say(f"{name} {event.done}/{event.total} {event.status} {event.cell.words}\n")
        yield directory


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
        found = evaluate(record, one.value) if record else None
        measured = converted(found, source_unit(one.value), one.unit) if is_number(found) else None
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


def study_lines(report: Report, published: Table) -> Iterator[str]:
    """One study: its tables, and what was published of it."""
    study, progress = report.study, report.progress
    yield from (f"## {escaped(study.name)}: {escaped(study.title)}", "")
    size = f", variant {study.variant}" if study.variant else ""
    yield f"{progress.done} of {progress.total} cells have their value{size}."
    yield from (f"\n**{escaped(caution)}**" for caution in report.cautions)
    for table in (*report.shown, published):
        if table.rows:
            yield from ("", f"### {escaped(table.title)}", "", table_as_markdown(table))
    yield ""


def traced_lines(models: Sequence[str], device: str, end: float) -> Iterator[str]:
    """How much of the step the kernel table explains, and what tracing cost."""
    yield from ("## Traces, bf16 train, context 128", "")
    yield "| model | compile | bare ms | traced | explained | with module | unlinked |"
    yield "|---|---|---|---|---|---|---|"
    for model, mode in itertools.product(models, ("off", "default")):
        if time.monotonic() > end:
            yield f"| {model} | {mode} | – | – | – | – | not run: out of time |"
            continue
        spec = RunSpec(model=model, device=device, precision="bf16").changed(compile=mode)
        record = run(spec, ["timing", "trace"]).record
        if record.kernels is None or record.timing is None:
            detail = escaped(record.passes[-1].detail)
            yield f"| {model} | {mode} | – | – | – | – | {detail} |"
            continue
        coverage = record.kernels.coverage
        yield (
            f"| {model} | {mode} | {record.timing.step.median_ms:.2f} | "
            f"{record.kernels.perturbation or 0:.3f}× | {coverage.explained:.2%} | "
            f"{coverage.with_module:.2%} | {coverage.unlinked} |"
        )
    yield ""


def keep_fixtures(device: str, folder: Path) -> list[str]:
    """A small real trace and snapshot of this device, for tests elsewhere."""
    result = run(RunSpec(device=device, precision="bf16"), ["trace", "memory"])
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for path in (result.directory.trace_path, result.directory.snapshot_path):
        if path.is_file() and path.stat().st_size <= LARGEST_FIXTURE_BYTES:
            shutil.copyfile(path, folder / path.name)
            kept.append(path.name)
    return kept


def title_lines(record: Record, title: str) -> Iterator[str]:
    """What was measured on; nothing that names the machine's owner."""
    yield from (f"# {title}", "")
    for group in ("device", "nvidia", "torch", "cpu", "settings"):
        for key, value in (record.environment.get(group) or {}).items():
            yield f"- {group} {key}: {value}"
    yield ""


def validate(options: argparse.Namespace, device: str) -> Path:
    """The page's path; it is written anew after every study, so that an end keeps what there is."""
    published = load_published()
    end = time.monotonic() + 60 * options.minutes
    parts: list[str] = []
    title, path = "", Path()
    for directory in fill(
        options.studies, device, options.variant, published, options.minutes, sys.stderr.write
    ):
        report = report_of(directory)
        records = records_of(directory, report.cells)
        if records and not title:
            first = next(iter(records.values()))
            title = device_name(first.environment) or "CPU"
            parts += title_lines(first, title)
        mine = [one for one in published if one.study == report.study.name]
        parts += study_lines(report, beside(report.cells, records, mine))
        if title:
            path = _write(options.out, title, parts)
    if not title:
        raise SysbenchError(f"no cell ended within {options.minutes:g} minutes")
    if options.traced:
        parts += traced_lines(options.traced, device, end)
        folder = options.out / "tests" / "fixtures" / path.stem
        parts.append(f"Fixtures kept: {', '.join(keep_fixtures(device, folder)) or 'none'}.")
        path = _write(options.out, title, parts)
    return path


def _write(out: Path, title: str, parts: Sequence[str]) -> Path:
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    path = out / "docs" / "validation" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts).rstrip() + "\n")
    return path


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--studies", type=_words, default=[*STUDIES])
    parser.add_argument("--variant", default="", help="a size of the studies, such as small")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all studies together")
    parser.add_argument("--traced", type=_words, default=[*TRACED], help="models; empty for none")
    parser.add_argument("--home", type=Path, help="keeps the runs; a second start goes on there")
    parser.add_argument("--out", type=Path, default=ROOT)
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    with tempfile.TemporaryDirectory() as passing:
        os.environ["SYSBENCH_HOME"] = str((options.home or Path(passing)).absolute())
        sys.stdout.write(f"{validate(options, device)}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SysbenchError as error:
        sys.exit(f"nothing was validated: {error}")
