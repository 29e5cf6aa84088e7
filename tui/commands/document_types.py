"""The types of every command's JSON documents, and their JSON Schema."""

from __future__ import annotations

import argparse
from typing import Any, NotRequired, TypedDict, get_args, get_type_hints

import msgspec

from sysbench.core.compare.comparison import Comparison
from sysbench.core.compare.gate_rule import Gate
from sysbench.core.experiments.baselines import Baseline, Judgement
from sysbench.core.experiments.experiment_report import ExperimentReport
from sysbench.core.experiments.noise_doctor import Examined
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.machine.doctor_check import Check
from sysbench.core.machine.sample import GpuProcess, HostState, ProcessState
from sysbench.core.predict.cache_forms import LayoutFit
from sysbench.core.predict.fit_grid import Fit, FitCell
from sysbench.core.predict.layout_plan import LayoutPlan
from sysbench.core.predict.savings import Savings
from sysbench.core.ranks.rank_rows import FileRankRow, Ranks
from sysbench.core.record.memory import LedgerRow, Oom
from sysbench.core.record.record import Finding, Record
from sysbench.core.record.steps import MarkedSteps, TracedCollective, TracedCopy
from sysbench.core.record.timing import Round
from sysbench.core.runs.kept_rates import RatesReport
from sysbench.core.runs.library import Entry
from sysbench.core.runs.trash import Trashed
from sysbench.core.tables.brief import Brief
from sysbench.core.tables.listing import Listing
from sysbench.core.tables.sections import SECTIONS
from sysbench.core.tables.table import Table
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.module_tree import TreeNode
from sysbench.core.trace.roofline import RoofPoint
from sysbench.tui.commands.output import print_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ENVELOPE = {
    "schema": {"type": ["integer", "string", "null"]},
    "command": {"type": "string"},
    "version": {"type": "string"},
    "total": {"type": "integer", "minimum": 0},
    "truncated": {"type": "boolean"},
}
REQUIRED = ("schema", "command", "version")


class TablesDocument(TypedDict):
    """Tables by name, beside some keys of what they are of."""

    tables: dict[str, Listing]
    missing: NotRequired[dict[str, str]]
    id: NotRequired[str]
    status: NotRequired[str]
    kind: NotRequired[str]
    file: NotRequired[str]
    folder: NotRequired[str]
    card: NotRequired[str]
    a: NotRequired[str]
    b: NotRequired[str]
    verdict: NotRequired[str]
    why: NotRequired[str]
    change: NotRequired[float | None]
    change_low: NotRequired[float | None]
    change_high: NotRequired[float | None]
    ending: NotRequired[str]
    headline: NotRequired[str]
    resume: NotRequired[str]


class Obstacle(TypedDict):
    """Why the data is absent, and the command that records it."""

    reason: str
    command: str | None


class CannotAnswer(TypedDict):
    cannot_answer: Obstacle


class Fitted(Fit, frozen=True, kw_only=True):
    method: str
    layouts: list[LayoutFit]
    card: str = ""
    world: str = ""


class Saved(Savings, frozen=True, kw_only=True):
    method: str
    card: str = ""


class Planned(LayoutPlan, frozen=True, kw_only=True):
    method: str
    card: str = ""


class GateDocument(Judgement, frozen=True, kw_only=True):
    command: str


class RowDocument(TypedDict):
    key: str
    title: str
    row: dict[str, str | int | float | bool | None]
    numbers: dict[str, Any]
    tables: dict[str, Listing]


class Started(TypedDict):
    """A job that runs detached."""

    id: str
    pid: int
    path: str


class Estimated(TypedDict):
    """A spec, predicted; further keys with --exact, --world and for GPUs."""

    parameters: int
    flops: dict[str, int]
    peak_bytes: int | None
    peak_phase: str | None
    ledger: list[LedgerRow]
    capacity_bytes: int | None
    fits: bool | None
    method: str
    card: NotRequired[str]
    missing: NotRequired[dict[str, str]]
    compute_capability: NotRequired[str | None]
    reserved_bytes: NotRequired[int | None]
    room_bytes: NotRequired[int | None]
    doubt_bytes: NotRequired[int | None]
    verdict: NotRequired[str | None]
    fits_expandable: NotRequired[bool | None]


class GridDocument(TypedDict):
    capacity_bytes: int | None
    axes: list[Any]
    cells: list[FitCell]
    method: str
    card: NotRequired[str]


class Compared(Comparison, frozen=True, kw_only=True):
    """A comparison with its gate, and the files that ``--output`` wrote."""

    gate: Gate | None
    paths: list[str] | None = None


class Address(TypedDict):
    run: NotRequired[str]
    url: str
    tunnel: str


class Exported(TypedDict):
    run: NotRequired[str]
    file: NotRequired[str]
    kind: str
    paths: list[str]
    redacted: NotRequired[dict[str, int]]
    left_out: NotRequired[dict[str, str]]


class StopDocument(TypedDict):
    id: str
    stopped: bool


class Traced(TypedDict):
    id: str
    steps: int | str


class NamedFile(TypedDict):
    """A baseline."""

    name: str
    path: str
    run: NotRequired[str]
    rounds: NotRequired[int]


class ListedRun(TypedDict):
    id: str


class Script(TypedDict):
    shell: str
    script: str


class RowTable(TypedDict):
    name: str
    columns: list[str]
    rows: list[list[Any]]


class StudyDocument(TypedDict):
    study: str
    variant: str
    title: str
    columns: list[str]
    rows: list[list[Any]]
    cells: list[dict[str, Any]]
    tables: list[RowTable]


class StudyList(TypedDict):
    studies: list[dict[str, Any]]
    begun: list[dict[str, Any]]


class GpuList(TypedDict):
    total: int
    truncated: bool
    rows: list[dict[str, Any]]


class GpuProcessList(TypedDict):
    total: int
    truncated: bool
    rows: list[GpuProcess]


class ProcessList(TypedDict):
    total: int
    truncated: bool
    rows: list[ProcessState]


class MachineDocument(TypedDict):
    t_ns: int
    driver: str | None
    cuda: str | None
    no_gpus: str
    gpus: GpuList
    gpu_processes: GpuProcessList
    processes: ProcessList
    host: HostState
    last_run: dict[str, Any] | None


class EnvironmentDocument(TypedDict):
    """Section ``environment``; further keys by the machine."""

    cpu: dict[str, Any]
    memory: dict[str, Any]
    system: dict[str, Any]
    nvidia: dict[str, Any] | None
    torch: dict[str, Any]
    packages: dict[str, Any]
    variables: dict[str, Any]
    settings: NotRequired[dict[str, Any]]
    missing: NotRequired[dict[str, str]]


class LogDocument(TypedDict, total=False):
    """Section ``log``: lines by pass."""

    timing: list[str]
    trace: list[str]
    memory: list[str]
    nsys: list[str]
    numerics: list[str]


CommandSchema = TypedDict(
    "CommandSchema",
    {
        "$schema": str,
        "title": str,
        "type": str,
        "required": list[str],
        "properties": dict[str, Any],
        "anyOf": list[dict[str, Any]],
        "$defs": dict[str, Any],
    },
)


class ListedTool(TypedDict):
    """A tool as ``tools/list`` of the Model Context Protocol has it."""

    name: str
    description: str
    inputSchema: dict[str, Any]
    annotations: dict[str, bool]


def _blocks() -> tuple[Any, ...]:
    hints = get_type_hints(Record)
    kinds = {section.block: None for section in SECTIONS.values() if section.block}
    return tuple(get_args(hints[name])[0] for name in kinds)


FILE_TABLES = (
    TablesDocument,
    CannotAnswer,
    RowDocument,
    list[Finding],
    list[Answer],
    TreeNode,
    Oom,
)
SECTION_DOCUMENTS = (
    *(*_blocks(), *FILE_TABLES, list[Round], list[RoofPoint], MarkedSteps),
    *(list[TracedCollective], list[TracedCopy], list[Table], EnvironmentDocument, LogDocument),
)
RUN_DOCUMENTS = (Record, Started)
DOCUMENTS: dict[str, tuple[Any, ...]] = {
    "run": RUN_DOCUMENTS,
    "estimate": (Brief, Estimated, GridDocument, Fitted, Saved, Planned, TablesDocument),
    "watch": (Record, Brief),
    "window": (Traced,),
    "study": (StudyDocument, StudyList, list[dict[str, Any]]),
    "list": (list[Entry], list[Trashed], Listing),
    "show": (Record, Inspection, Brief, *SECTION_DOCUMENTS),
    "compare": (Compared, Brief, TablesDocument),
    "ab": (ExperimentReport, Brief, Started, TablesDocument),
    "baseline": (Baseline, NamedFile, list[NamedFile]),
    "gate": (GateDocument,),
    "export": (Exported,),
    "serve": (Address,),
    "web": (Address,),
    "inspect": (Inspection, Ranks, Brief, list[FileRankRow], *SECTION_DOCUMENTS),
    "attach": (*RUN_DOCUMENTS, ExperimentReport),
    "stop": (StopDocument,),
    "rm": (list[ListedRun],),
    "top": (MachineDocument,),
    "doctor": (list[Check], list[RatesReport], Examined),
    "completions": (Script, list[str]),
    "schema": (CommandSchema,),
    "mcp": (list[ListedTool],),
}
"""By command; a list is the ``rows`` of its document."""


def document_schema(command: str) -> dict[str, Any]:
    kinds, definitions = msgspec.json.schema_components(
        DOCUMENTS[command], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": DIALECT,
        "title": f"sysbench-tui {command} --json",
        "type": "object",
        "required": [*REQUIRED],
        "properties": ENVELOPE,
        "anyOf": [_of_rows(kind) if kind.get("type") == "array" else kind for kind in kinds],
        "$defs": definitions,
    }


def _of_rows(kind: dict[str, Any]) -> dict[str, Any]:
    required = ["rows", "total", "truncated"]
    return {"type": "object", "required": required, "properties": {"rows": kind}}


def print_schema(arguments: argparse.Namespace) -> int:
    print_json(document_schema(arguments.name))
    return 0
