"""The page of a device: what was measured on, how each stage ended, and the stages' lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sysbench.core.errors import DamagedFileError
from sysbench.core.export.text_formats import escaped
from sysbench.core.runs.run_directory import list_runs, load_record
from tests.gpu.stages.stage import Stage, header, line

REHEARSAL = (
    "**null GPU: a rehearsal.** This device computes nothing. Memory, launches and names below are "
    "the host's own; no time was measured, and none is shown."
)
FACTS = ("device", "nvidia", "torch", "cpu", "settings")


@dataclass(frozen=True)
class Ended:
    """How a stage ended; ``seconds`` of the host's clock, its earlier starts left out."""

    outcome: str
    seconds: float
    detail: str = ""


def slug(name: str) -> str:
    """``nvidia-h200`` for ``NVIDIA H200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def ended(folder: Path, stage: Stage) -> Ended | None:
    """How the stage ended last; None if it never did."""
    path = folder / f"{stage.name}.json"
    return Ended(**json.loads(path.read_text())) if path.is_file() else None


def keep(folder: Path, stage: Stage, how: Ended) -> None:
    """Keep how a stage ended."""
    (folder / f"{stage.name}.json").write_text(json.dumps(asdict(how)))


def lines_path(folder: Path, stage: Stage) -> Path:
    """The file that takes a stage's lines as they come."""
    return folder / f"{stage.name}.md"


def write_page(
    path: Path, title: str, folder: Path, stages: Sequence[Stage], *, is_null: bool
) -> None:
    """Write the page of what the folder has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_page(title, folder, stages, is_null=is_null)).rstrip() + "\n")


def _page(title: str, folder: Path, stages: Sequence[Stage], *, is_null: bool) -> Iterator[str]:
    yield from (f"# {title}", "")
    if is_null:
        yield from (REHEARSAL, "")
    yield from ("Made by `make gpu-check`.", "")
    yield from _facts(folder / "home")
    yield ""
    yield from header("stage", "outcome", "seconds", "limit", "")
    for stage in stages:
        how = ended(folder, stage)
        limit = f"{60 * stage.minutes:.0f}"
        if how is None:
            is_begun = lines_path(folder, stage).is_file()
            yield line([stage.name, "under way" if is_begun else "not run", "", limit, ""])
        else:
            yield line([stage.name, how.outcome, f"{how.seconds:.0f}", limit, how.detail])
    for stage in stages:
        path = lines_path(folder, stage)
        if path.is_file():
            yield from ("", f"## {stage.title}", "", path.read_text().strip())


def _facts(home: Path) -> Iterator[str]:
    """The machine by the first run that knows it; nothing that names its owner."""
    for directory in list_runs(home):
        try:
            environment = load_record(directory).environment
        except DamagedFileError:
            continue
        groups = {name: environment.get(name) or {} for name in FACTS}
        if groups["torch"]:
            for name, facts in groups.items():
                yield from (
                    f"- {name} {key}: {escaped(str(value))}"
                    for key, value in facts.items()
                    if value is not None
                )
            return
