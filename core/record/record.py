"""The typed, versioned result of a run, which screens, tables and exports read.

``record.json`` is a public interface: keys are added, never renamed, and ``schema`` is the version
that wrote it. A value that is not available is null, with its reason under its name in ``missing``
of the same block. Names carry the unit: milliseconds, nanoseconds, bytes. Shares are fractions of
one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from sysbench.core.errors import DamagedFileError, NewerFileError
from sysbench.core.record.compile import Compile as Compile
from sysbench.core.record.compile import GeneratedKernel as GeneratedKernel
from sysbench.core.record.distributed import Distributed as Distributed
from sysbench.core.record.environment import Roof
from sysbench.core.record.events import Neighbour, Outcome
from sysbench.core.record.job import WatchedJob as WatchedJob
from sysbench.core.record.memory import (
    LARGER_BLOCKS,
    ClosedForm,
    DeviceMemory,
    Growth,
    HeldMemory,
    Oom,
    Origin,
    Pool,
    RankMemory,
    ReconciledRow,
    StepMemory,
    prediction_error,
)
from sysbench.core.record.memory import Allocation as Allocation
from sysbench.core.record.memory import LedgerRow as LedgerRow
from sysbench.core.record.memory import Timeline as Timeline
from sysbench.core.record.numerics import Numerics as Numerics
from sysbench.core.record.steps import (
    HostSide,
    MarkedSteps,
    NsysFacts,
    ProductError,
    RouterLoad,
    TracedCollective,
    TracedCopy,
)
from sysbench.core.record.timing import Decode as Decode
from sysbench.core.record.timing import Round as Round
from sysbench.core.record.timing import Spread as Spread
from sysbench.core.record.timing import Timing as Timing
from sysbench.core.storage import UNREADABLE_JSON

SCHEMA = 1


class Block(msgspec.Struct, frozen=True):
    """Part of the record. Unknown keys of a newer version are ignored."""


class KernelRow(Block, frozen=True):
    """All launches of one kernel (on the CPU: one operator) from one place, per traced step.

    The place is phase, module and ``op``, the outermost operator. A layer's number in the module
    reads ``*``; the pass's ``kernels.json`` has the same rows layer by layer. Phase ``other`` is
    outside of all phases, ``unknown`` if the launch was not recorded (``linked`` is false then;
    such rows count like the others).

    ``calls``, ``total_ns`` and ``exclusive_ns`` are per step, averaged over the traced steps;
    ``mean_ns median_ns min_ns max_ns`` are of single calls, the median null in older records.
    ``exclusive_ns`` counts every instant once: of overlapping kernels, computation comes before
    communication before copies, and the earlier start before the later. ``share`` (of the step)
    uses it. An operator's times leave out the operators inside it. ``fused`` kernels were generated
    by torch.compile; ``ops`` are the operators in them.

    ``flops`` and ``moved_bytes`` are per step, from the shapes of the operators that ran: what the
    arithmetic needs, not a counter's reading. ``of_roof`` is the achieved part of the binding roof
    (compute or memory). All three are null if unknown.
    """

    name: str
    category: str
    phase: str
    module: str
    op: str
    calls: float
    total_ns: float
    exclusive_ns: float
    mean_ns: float
    min_ns: float
    max_ns: float
    share: float
    fused: bool = False
    ops: list[str] = []
    linked: bool = True
    flops: float | None = None
    moved_bytes: float | None = None
    of_roof: float | None = None
    median_ns: float | None = None


class CategoryRow(Block, frozen=True):
    category: str
    phase: str
    calls: float
    exclusive_ns: float
    share: float


class IdleRow(Block, frozen=True):
    cause: str
    ns: float
    share: float


class Coverage(Block, frozen=True):
    """Share of the traced steps that the table explains. Counts are over all traced steps.

    ``launches`` are the calls on the host that start device work, ``kernels`` the kernels, copies
    and fills seen on the device, ``unlinked`` those without a recorded launch; all 0 on the CPU.
    ``explained`` is one minus the shares of unlinked and of unattributed time, and 0 if a device
    computed and none of its work was recorded. ``with_module`` is the part of forward, loss and
    backward time that has a module, in a CUDA graph one below the root. ``graph_kernels`` are the
    kernels that one launch of a CUDA graph started: all take its place in the model. ``dropped``
    are launches whose work was never seen on the device, ``dropped_fills`` those of them that only
    set memory. ``captured`` launches went into a graph, and run when it is replayed.
    """

    launches: int
    kernels: int
    unlinked: int
    explained: float
    with_module: float
    graph_kernels: int = 0
    dropped: int = 0
    dropped_fills: int = 0
    captured: int = 0


class Kernels(Block, frozen=True):
    """The trace pass. ``source`` is the kind of its rows: device kernels or host operators.

    All per step, averaged over ``steps`` traced steps. ``step_ms`` is the traced step; the rows'
    ``exclusive_ns``, the ``idle`` rows and ``unattributed_ns`` add up to it, and so do
    ``phases_ns``. ``busy_ns`` is the time in which anything ran, ``span_ns`` from the first to the
    last of it. On a device a phase lasts from the first work that it launched to the first of the
    next phase; on the CPU ``other`` is the time between phases. ``unattributed_ns`` is time after a
    launch whose kernel was never recorded, so not counted as idle. ``perturbation`` is the traced
    step over the untraced one, null without a timing pass.

    ``counted_flops`` are the FLOPs of matrix products by phase, from the shapes that ran; null if
    no shapes were recorded. ``roof`` is the reference of the rows' ``of_roof``. ``generated`` are
    the kernels of compiled graphs, decoded. ``device`` is the number of the rows' device, null for
    rows of the host; ``other_devices`` also ran something and are left out. ``collectives``,
    ``copies`` and ``host`` are of an imported file. ``routers`` are of a mixture of experts, and
    ``product_errors`` of converted layers, in further steps after the traced ones.
    """

    source: Literal["kernels", "operators"]
    steps: int
    step_ms: float
    busy_ns: float
    span_ns: float
    phases_ns: dict[str, float]
    rows: list[KernelRow]
    categories: list[CategoryRow]
    idle: list[IdleRow]
    unattributed_ns: float
    coverage: Coverage
    perturbation: float | None = None
    counted_flops: dict[str, float] | None = None
    roof: Roof | None = None
    generated: list[GeneratedKernel] = []
    marked_steps: MarkedSteps | None = None
    collectives: list[TracedCollective] = []
    copies: list[TracedCopy] = []
    host: HostSide | None = None
    device: int | None = None
    other_devices: list[int] = []
    routers: list[RouterLoad] = []
    product_errors: list[ProductError] = []
    missing: dict[str, str] = {}

    @property
    def whole(self) -> Literal["step", "span"]:
        """Interval to which the rows add up.

        Without marked phases, as in an imported trace, the number of steps between the first and
        the last work is unknown, so the rows are of the span.
        """
        chosen = self.marked_steps is not None and self.marked_steps.chosen
        return "step" if self.phases_ns or chosen else "span"

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded in a window without length."""
        return not self.rows and not self.step_ms

    @property
    def lacks_kernels(self) -> bool:
        """Whether a device computed and no work of it was recorded: rows are the host's.

        ``missing["kernels"]`` has the reason.
        """
        return "kernels" in self.missing


class Nsys(NsysFacts, frozen=True, kw_only=True):
    """The nsys pass or an imported export: kernels as in the trace pass, and further summaries."""

    kernels: Kernels


class ModuleMemory(Block, frozen=True):
    """Bytes of one module and its children, by kind."""

    module: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int


class Memory(Block, frozen=True):
    """The memory pass: five totals, and a ledger that adds up to the peak.

    ``ledger`` rows sum to ``peak_allocated_bytes`` (of a steady step); ``card`` rows sum to
    ``driver_used_bytes``. ``columns`` repeats the ledger at other instants: ``after build``,
    ``first step`` (its peak), ``after warm-up``, ``end of forward``, ``peak``, ``steady end``, and
    ``card_columns`` and ``pools`` the process memory and the allocator's pools, where they were
    read. On the CPU ``reserved`` does not exist and ``driver_used_bytes`` is the process's resident
    set.

    ``peak_as_predicted`` is `tensor_peak_bytes` in the prediction's rows, ``reconciliation`` both;
    ``library_workspace_bytes`` is the part of the peak above that, allocated by libraries within a
    product. ``resident_set`` names the one of ``closed_forms`` that matches the peak. ``origins``
    are what is alive at the peak by category, phase and stack, as requested, largest first.
    ``residual_bytes`` are those of the allocator's counter at the peak that no recorded allocation
    explains, 0 if all is right, and a row otherwise; null if no counter was read.
    ``clock_offset_us`` is the allocator's clock minus the worker's, by which its events were
    corrected; null if there is one clock. ``baseline_bytes`` are in ``baseline_blocks`` that are
    older than the recording, which began after them or whose ring of events wrapped. ``devices`` is
    filled for several devices.

    ``steps`` has all recorded steps if those after the warm-up differ; the other tables are of the
    one with the highest peak. ``growth`` is what each step leaves more of than the one before.

    ``peak_requested_bytes`` and ``end_requested_bytes`` are of requests, without the rounding to
    blocks. ``predicted_allocated_bytes`` and ``predicted_reserved_bytes`` are what a model of
    CUDA's allocator has in blocks and reserves for the requests of the step's dry run, to compare
    with ``peak_allocated_bytes`` and ``peak_reserved_bytes``.

    An imported recording is shown as a whole: the columns are ``peak``, ``out of memory`` if a
    request failed, and ``end``; ``at_failure`` is what was alive when it failed, which is not
    always at the peak; ``first_step_peak_bytes`` is null. ``device`` is the number of the
    device of an imported snapshot, and ``alike`` what is alive by size and place in the code: all
    blocks are grouped before the smaller groups become one row. If ``events`` is 0, nothing was
    recorded: everything is of the moment of the snapshot, and the peak is unknown. ``ring_events``
    is how many events fit into the recorder's ring, ``ring_overflowed`` whether some were
    overwritten; null if the file does not contain it.

    The source ``holders`` has no events: what holds tensors was counted at the ends of the phases
    of a watched command's steps. The peak is the largest count of the last step, and ``stack`` has
    variables, operators and lines that hold the memory. ``recorded_peak_bytes`` is the allocator's
    in these steps, in ``recorded_peak_phase``, where its history was recorded.

    Of several ranks the block is that of rank 0, and ``ranks`` has the peak of each.
    """

    source: Literal["cuda-snapshot", "cuda-profiler", "cpu-profiler", "holders"]
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    end_allocated_bytes: int
    driver_used_bytes: int | None
    baseline_bytes: int
    peak_phase: str
    peak_ms: float
    first_step_peak_bytes: int | None
    ledger: list[LedgerRow]
    card: list[LedgerRow]
    columns: dict[str, list[LedgerRow]]
    modules: list[ModuleMemory]
    largest: list[Allocation]
    timeline: Timeline
    predicted_peak_bytes: int | None = None
    predicted_reserved_bytes: int | None = None
    events: int = 0
    events_dropped: int = 0
    step_ms: float | None = None
    card_columns: dict[str, list[LedgerRow]] = {}
    pools: dict[str, list[Pool]] = {}
    peak_as_predicted: list[LedgerRow] = []
    reconciliation: list[ReconciledRow] = []
    closed_forms: list[ClosedForm] = []
    resident_set: str | None = None
    origins: list[Origin] = []
    baseline_blocks: int = 0
    devices: list[DeviceMemory] = []
    library_workspace_bytes: int = 0
    residual_bytes: int | None = None
    clock_offset_us: float | None = None
    peak_requested_bytes: int | None = None
    end_requested_bytes: int | None = None
    device: int | None = None
    alike: list[Origin] = []
    at_failure: HeldMemory | None = None
    ring_events: int | None = None
    ring_overflowed: bool | None = None
    steps: list[StepMemory] = []
    growth: list[Growth] = []
    predicted_allocated_bytes: int | None = None
    recorded_peak_bytes: int | None = None
    recorded_peak_phase: str = ""
    ranks: list[RankMemory] = []
    missing: dict[str, str] = {}

    @property
    def compared_bytes(self) -> int | None:
        """Prediction of ``peak_allocated_bytes``: in blocks of the allocator where it has any."""
        return self.predicted_allocated_bytes or self.predicted_peak_bytes

    @property
    def is_state(self) -> bool:
        """True for a snapshot without a history, whose peak is unknown."""
        return self.device is not None and not self.events

    @property
    def is_counted(self) -> bool:
        """True if holders were counted at the ends of phases, instead of recording requests."""
        return self.source == "holders"

    @property
    def moment(self) -> str:
        """Moment of the ledger, as the end of a sentence."""
        if self.is_counted:
            return f"at the end of {self.peak_phase}"
        return "when the snapshot was taken" if self.is_state else "at the peak"

    @property
    def holders(self) -> tuple[HeldMemory, str]:
        """What was alive when a request failed, else at the peak, and that moment in words."""
        if self.at_failure is not None:
            return self.at_failure, "when memory ran out"
        return HeldMemory(self.origins, self.largest, self.alike), self.moment

    @property
    def prediction_error(self) -> float | None:
        return prediction_error(self.compared_bytes, self.peak_allocated_bytes)

    @property
    def tensor_peak_bytes(self) -> int:
        """Peak bytes of tensors, without library workspace: the quantity that is predicted."""
        return self.peak_allocated_bytes - self.library_workspace_bytes

    @property
    def tensor_prediction_error(self) -> float | None:
        return prediction_error(self.predicted_peak_bytes, self.tensor_peak_bytes)

    @property
    def comparable_peak_bytes(self) -> int:
        """`tensor_peak_bytes` as requested: without the rounding to blocks."""
        larger = (row.bytes for row in self.ledger if row.name.startswith(LARGER_BLOCKS))
        return self.tensor_peak_bytes - sum(larger)

    @property
    def comparable_prediction_error(self) -> float | None:
        return prediction_error(self.predicted_peak_bytes, self.comparable_peak_bytes)

    @property
    def whole(self) -> Literal["a steady step", "the recording"]:
        """Interval of which the peak is the maximum."""
        is_whole = self.first_step_peak_bytes is None and not self.is_counted
        return "the recording" if is_whole else "a steady step"


class Telemetry(Block, frozen=True):
    """Devices and host during the passes: name of the series to its summary.

    ``series`` keys are ``device0.power_watts``, ``host.cpu_percent`` …; each value has ``min median
    max n`` over the timing pass's measured part.
    """

    interval_seconds: float
    samples: int
    series: dict[str, dict[str, float]]
    clock_reasons: list[str]
    other_processes: list[dict[str, Any]]
    missing: dict[str, str] = {}


SEVERITIES = ("problem", "warning", "note", "good")
HEALTH = ("health-", "file-odd-call")
"""Prefixes of the rules on the health of a file."""


class Finding(Block, frozen=True):
    """Verdict, why and next of one rule, with the numbers it used.

    ``cost`` is the share of the step (of the span, in an imported file) that it explains, 0 for
    findings that are not about time.
    """

    rule: str
    severity: Literal["good", "note", "warning", "problem"]
    verdict: str
    why: str
    next: str
    numbers: dict[str, float | int | str] = {}
    cost: float = 0.0

    @property
    def is_health(self) -> bool:
        """Whether it is on the health of a file, and comes before all tables."""
        return self.rule.startswith(HEALTH)


class PassRecord(Block, frozen=True):
    """Outcome of one pass.

    ``log_tail`` has the last lines that the worker printed, ``neighbours`` the other processes
    during the timing pass, busiest first, without their arguments.
    """

    name: str
    outcome: Outcome
    detail: str
    seconds: float
    step_ms: float | None = None
    log_tail: list[str] = []
    oom: Oom | None = None
    neighbours: list[Neighbour] = []


class Record(Block, frozen=True, kw_only=True):
    schema: int = SCHEMA
    id: str
    identity: str
    status: Outcome | Literal["running"]
    created_ns: int
    ended_ns: int | None = None
    spec: dict[str, Any]
    parameters: int
    environment: dict[str, Any]
    prediction: dict[str, Any] | None = None
    passes: list[PassRecord] = []
    findings: list[Finding] = []
    timing: Timing | None = None
    kernels: Kernels | None = None
    memory: Memory | None = None
    nsys: Nsys | None = None
    numerics: Numerics | None = None
    compile: Compile | None = None
    distributed: Distributed | None = None
    job: WatchedJob | None = None
    telemetry: Telemetry | None = None
    missing: dict[str, str] = {}

    def pass_named(self, name: str) -> PassRecord | None:
        return next((row for row in self.passes if row.name == name), None)


def encode_record(record: Record, *, indent: int = 2) -> bytes:
    """Encode as JSON text, keys in a fixed order."""
    return msgspec.json.format(msgspec.json.encode(record), indent=indent)


def decode_record(data: bytes, source: Path | str = "record.json") -> Record:
    """Decode JSON.

    Raises:
        DamagedFileError: Not a record.
        NewerFileError: A record of a later schema.
    """
    try:
        # The number first: a later record may have another shape.
        schema = msgspec.json.decode(data, type=_Numbered).schema
        if schema > SCHEMA:
            message = f"{source} has schema {schema}, this version reads up to {SCHEMA}: upgrade"
            raise NewerFileError(message)
        return msgspec.json.decode(data, type=Record)
    except UNREADABLE_JSON as error:
        raise DamagedFileError(f"{source} is not a record: {error}") from error


class _Numbered(msgspec.Struct):
    """Fields that records of all versions have."""

    schema: int = SCHEMA
