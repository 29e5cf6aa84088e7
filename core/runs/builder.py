"""Folds a run's events into its record: the same whether live or after a crash."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from ..analysis.costs.roofline import with_mfu, with_roof
from ..analysis.memory.oom import describe_oom
from ..analysis.memory.predicted import reconciled
from ..analysis.rules.findings import findings_of
from ..errors import DamagedFileError
from ..estimate.closed_form import Prediction, predict, why_not_predicted
from ..machine.devices import nvml_index
from ..machine.peaks import roof_of
from ..machine.telemetry.sample import Sample
from ..machine.telemetry.summary import summarise
from ..record.blocks import PASSES
from ..record.environment import merged
from ..record.events import (
    AnyEvent,
    DeviceDescribed,
    Outcome,
    OutOfMemory,
    PassEnded,
    PassStarted,
    ResultReported,
    RunEnded,
    StageEntered,
    TelemetrySampled,
)
from ..record.memory import Oom, OomSnapshot
from ..record.record import Distributed, Kernels, Nsys, PassRecord, Record, Telemetry, Timing
from ..record.roof import Roof
from ..spec.spec import RunSpec
from .directory import Header, RunDirectory

LOG_TAIL_LINES = 60
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Record)}


class RecordBuilder:
    """Collects events; `record` is the result so far.

    Args:
        run: Source of the passes' logs.
        header: The decisions made before the run.
        environment: Facts about the machine, without torch's.
    """

    def __init__(self, run: RunDirectory, header: Header, environment: dict[str, Any]) -> None:
        self.run = run
        self.header = header
        self.environment = environment
        self.status: Outcome | None = None
        self.ended_ns: int | None = None
        self.passes: dict[str, PassRecord] = {}
        self.blocks: dict[str, Any] = {}
        self._current = ""
        self._oom: OutOfMemory | None = None
        self._alive: OomSnapshot | None = None
        self._samples: list[Sample] = []
        self._measured: tuple[int, int] | None = None
        self._worker_pids: set[int] = set()

    def add(self, event: AnyEvent) -> None:
        """Take one more event into account."""
        match event:
            case PassStarted():
                self._current, self._oom, self._alive = event.name, None, None
                self._worker_pids.add(event.pid)
            case DeviceDescribed():
                self.environment = merged(self.environment, event.facts)
            case StageEntered() if self._current == "timing" and event.stage == "measure":
                self._measured = (event.t_ns, 2**63 - 1)
            case StageEntered() if self._current == "timing" and self._measured:
                self._measured = (self._measured[0], event.t_ns)
            case OutOfMemory():
                self._oom = event
            case ResultReported():
                self._take_block(event)
            case TelemetrySampled():
                self._samples.append(msgspec.convert(event.sample, Sample))
            case PassEnded():
                self._end_pass(event)
            case RunEnded():
                self.status, self.ended_ns = event.status, event.t_ns
            case _:
                pass

    def _take_block(self, event: ResultReported) -> None:
        if event.block == "oom":
            self._alive = msgspec.convert(event.data, OomSnapshot)
            return
        block = msgspec.convert(event.data, _TYPES[event.block])
        self.blocks[event.block] = block
        if isinstance(block, Distributed):
            self._worker_pids.update(row.pid for row in block.rows)

    def _end_pass(self, event: PassEnded) -> None:
        if event.name == "timing" and self._measured:
            self._measured = (self._measured[0], min(self._measured[1], event.t_ns))
        self.passes[event.name] = PassRecord(
            name=event.name,
            outcome=event.outcome,
            detail=event.detail,
            seconds=event.seconds,
            step_ms=self._step_ms(event.name),
            log_tail=last_lines(self.run.log_path(event.name)),
            oom=self._described_oom(),
        )

    def _described_oom(self) -> Oom | None:
        if self._oom is None:
            return None
        return describe_oom(self._oom, self._alive, self.header.spec)

    def _step_ms(self, name: str) -> float | None:
        row = PASSES.get(name)
        if row is None or not row.step_ms or row.block not in self.blocks:
            return None
        step_ms: float | None = attrgetter(row.step_ms)(self.blocks[row.block])
        return step_ms

    def record(self) -> Record:
        """The record of everything so far, findings included."""
        spec = self.header.spec
        prediction = predict(spec)
        peak_key = spec.precision_row.peak_key
        roof, no_roof = roof_of(
            spec.device, spec.precision, peak_key, self.environment, self.header.peak
        )
        record = Record(
            id=self.header.id,
            identity=spec.identity,
            status=self.status or "running",
            created_ns=self.header.created_ns,
            ended_ns=self.ended_ns,
            spec=msgspec.to_builtins(spec),
            parameters=prediction.parameters,
            environment=self.environment,
            prediction=_kept(prediction, spec),
            passes=list(self.passes.values()),
            **self.blocks,
            telemetry=self._telemetry(spec),
            missing=self._missing(spec),
        )
        timing = _with_mfu(record.timing, spec, roof, no_roof, prediction)
        record = msgspec.structs.replace(
            record,
            timing=timing,
            kernels=_under_roof(record.kernels, timing, roof, no_roof),
            memory=record.memory and reconciled(record.memory, spec, prediction),
            nsys=_nsys_under_roof(record.nsys, timing, roof, no_roof),
        )
        return msgspec.structs.replace(record, findings=findings_of(record))

    def _telemetry(self, spec: RunSpec) -> Telemetry | None:
        if not self._samples:
            return None
        return summarise(
            self._samples,
            device_index=nvml_index(spec.device, self._samples[0].devices),
            between=self._measured,
            own_pids=frozenset(self._worker_pids),
        )

    def _missing(self, spec: RunSpec) -> dict[str, str]:
        missing: dict[str, str] = {}
        for row in PASSES.values():
            if row.block in self.blocks:
                continue
            if row.name not in self.header.passes:
                missing[row.block] = f"the {row.name} pass was not asked for"
            elif row.name in self.passes:
                missing[row.block] = self.passes[row.name].detail
            else:
                missing[row.block] = f"the {row.name} pass did not run"
        if "compile" not in self.blocks:
            off = spec.compile == "off"
            missing["compile"] = "compile is off" if off else "the timing pass has no result"
        if "distributed" not in self.blocks:
            alone = "there is one rank only"
            failed = missing.get("timing", "the timing pass has no result")
            missing["distributed"] = alone if spec.ranks == 1 else failed
        if _kept(predict(spec), spec) is None:
            missing["prediction"] = why_not_predicted(spec) or ""
        if not self._samples:
            missing["telemetry"] = "no sample was taken"
        return missing


def _with_mfu(
    timing: Timing | None, spec: RunSpec, roof: Roof | None, no_roof: str, prediction: Prediction
) -> Timing | None:
    if timing is None:
        return None
    if not spec.has_model or spec.ranks > 1:
        missing = timing.missing | {"mfu": "the model's FLOPs are of one model on one device"}
        return msgspec.structs.replace(timing, missing=missing)
    return with_mfu(timing, roof, no_roof, prediction.causal_step_flops)


def _under_roof(
    kernels: Kernels | None, timing: Timing | None, roof: Roof | None, no_roof: str
) -> Kernels | None:
    """The table with shares of the roof, and its step over the bare one where that was timed."""
    if kernels is None:
        return None
    kernels = with_roof(kernels, roof, no_roof)
    if timing is None:
        return kernels
    perturbation = kernels.step_ms / timing.step.median_ms
    return msgspec.structs.replace(kernels, perturbation=perturbation)


def _nsys_under_roof(
    nsys: Nsys | None, timing: Timing | None, roof: Roof | None, no_roof: str
) -> Nsys | None:
    if nsys is None:
        return None
    kernels = _under_roof(nsys.kernels, timing, roof, no_roof)
    return msgspec.structs.replace(nsys, kernels=kernels)


def _kept(prediction: Prediction, spec: RunSpec) -> dict[str, Any] | None:
    """The prediction to keep; a transformer's always, then of the eager step on one device."""
    if spec.workload != "transformer" and why_not_predicted(spec) is not None:
        return None
    kept: dict[str, Any] = msgspec.to_builtins(prediction)
    return kept


def replay(run: RunDirectory) -> Record:
    """The record from the events alone; still ``running`` if they hold no end.

    Raises:
        DamagedFileError: Not even ``run.json`` can be read.
    """
    builder = RecordBuilder(run, run.header(), _known_environment(run))
    last_ns = 0
    for event in run.tail().read():
        builder.add(event)
        last_ns = event.t_ns
    return msgspec.structs.replace(builder.record(), ended_ns=last_ns or None)


def _known_environment(run: RunDirectory) -> dict[str, Any]:
    try:
        return run.record().environment
    except DamagedFileError:
        return {}


def load_record(run: RunDirectory) -> Record:
    """The record of a run; if its supervisor died before the end, rebuilt and kept.

    Raises:
        DamagedFileError: The run cannot be read at all.
    """
    # Checked before reading: a supervisor that ends in between leaves a finished record.
    live = run.is_live()
    try:
        record = run.record()
        if record.status != "running" or live:
            return record
    except DamagedFileError:
        if not run.header_path.is_file():
            raise
    record = replay(run)
    if live:
        return msgspec.structs.replace(record, ended_ns=None)
    if record.status == "running":
        record = msgspec.structs.replace(record, status="killed")
    run.write_record(record)
    return record


def last_lines(path: Path, count: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines of a log, undecodable bytes replaced; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 65536))
            lines: Iterable[str] = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    return list(deque(lines, maxlen=count))
