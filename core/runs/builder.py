"""Fold a run's events into its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.findings.findings_rules import findings_of
from sysbench.core.formatting import counted
from sysbench.core.machine.peaks import roof_of
from sysbench.core.machine.telemetry_summary import SampleLog
from sysbench.core.memory.oom import describe_oom
from sysbench.core.memory.predicted import reconcile
from sysbench.core.predict.closed_form import Prediction, predict, why_not_predicted
from sysbench.core.record.blocks import PASSES, why_left_out
from sysbench.core.record.environment import (
    Roof,
    compute_capability,
    device_name,
    merge_environments,
    nodes,
    own_parameters,
    torch_version,
)
from sysbench.core.record.events import (
    AnyEvent,
    ClockMoved,
    DeviceDescribed,
    EventTail,
    Outcome,
    OutOfMemory,
    PassEnded,
    PassStarted,
    ResultReported,
    RoundDisturbed,
    RunEnded,
    RunStarted,
    StageEntered,
    StepsTimed,
    TelemetrySampled,
    WarmupStepTimed,
)
from sysbench.core.record.memory import Oom, OomSnapshot
from sysbench.core.record.record import (
    Distributed,
    Finding,
    PassRecord,
    Record,
    Timing,
    WatchedJob,
)
from sysbench.core.record.timing import Energy, Round
from sysbench.core.runs.added_rounds import Attempt, RoundLog
from sysbench.core.runs.run_directory import Header, RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import last_lines
from sysbench.core.trace.roofline import nsys_under_roof, under_roof, with_bandwidth, with_mfu

RECORD_CHANGED = Finding(
    rule="record-changed",
    severity="warning",
    verdict="record.json was changed after it was written",
    why="its SHA-256 is not in record.sha256; these figures are from events.jsonl",
    next="delete record.json to rebuild it from the events",
)


def lines_lost(count: int) -> Finding:
    return Finding(
        rule="events-damaged",
        severity="warning",
        verdict=f"{counted(count, 'line')} of events.jsonl cannot be read",
        why="a crash or a full disk tore them, or somebody changed the file; samples, notices or "
        "steps that they held are not in this record",
        next="run again if the figures must be complete",
        numbers={"lines": count},
    )


def reasons_of_missing(
    header: Header,
    blocks: Mapping[str, Any],
    passes: Sequence[PassRecord],
    no_telemetry: str,
) -> dict[str, str]:
    """Return by block of the record the reason why it is null; ``no_telemetry`` is the sensors'."""
    spec = header.spec
    outcomes = [(row.name, row.outcome) for row in passes]
    details = {row.name: row.detail for row in passes}
    missing: dict[str, str] = {}
    for row in PASSES.values():
        if row.block in blocks:
            continue
        if row.name not in header.passes:
            missing[row.block] = f"this run has no {row.name} pass"
        elif row.name in details:
            missing[row.block] = details[row.name]
        elif why := why_left_out(row.name, outcomes):
            missing[row.block] = f"the {row.name} pass was left out: {why}"
        else:
            missing[row.block] = f"the {row.name} pass did not run"
    if "compile" not in blocks:
        off = spec.compile == "off"
        missing["compile"] = "compile is off" if off else "the timing pass has no result"
    if "distributed" not in blocks:
        alone = "one rank only"
        failed = missing.get("timing", "the timing pass has no result")
        missing["distributed"] = alone if spec.ranks == 1 else failed
    if prediction_to_store(predict(spec), spec) is None:
        missing["prediction"] = why_not_predicted(spec) or ""
    if no_telemetry:
        missing["telemetry"] = no_telemetry
    return missing


def prediction_to_store(prediction: Prediction, spec: RunSpec) -> dict[str, Any] | None:
    """Return the prediction to store: for transformers, else for an eager step on one device."""
    if spec.workload != "transformer" and why_not_predicted(spec) is not None:
        return None
    stored: dict[str, Any] = msgspec.to_builtins(prediction)
    return stored


_TYPES = {field.name: field.type for field in msgspec.structs.fields(Record)}


class RecordBuilder:
    """Collects events; `record` is the result so far."""

    def __init__(self, run: RunDirectory, header: Header, environment: dict[str, Any]) -> None:
        self.run = run
        self.header = header
        self.environment = environment
        self.status: Outcome | None = None
        self.ended_ns: int | None = None
        self.started = False
        self.resumed = False
        self._before: Outcome | None = None
        self._passes: dict[str, PassRecord] = {}
        self._blocks: dict[str, Any] = {}
        self._rounds = RoundLog(header.repeat, header.spec)
        self._open: PassStarted | None = None
        self.last_ns = 0
        self._oom: OutOfMemory | None = None
        self._alive: OomSnapshot | None = None
        self._log = SampleLog(header.spec.device)
        self._worker_pids: set[int] = set()
        self.lines_lost = 0
        """Lines of the events that could not be read back."""

    def add(self, event: AnyEvent) -> None:
        try:
            self._fold(event)
        except msgspec.ValidationError as error:
            name = type(event).__name__
            raise DamagedFileError(f"{self.run.events_path}: {name}: {error}") from error

    def take_in(self, tail: EventTail) -> None:
        for event in tail.read():
            self.add(event)
        self.lines_lost = tail.skipped

    def _fold(self, event: AnyEvent) -> None:
        match event:
            case RunStarted():
                self.started = True
                self.environment = event.environment or self.environment
            case PassStarted():
                self._start_pass(event)
            case DeviceDescribed():
                self._describe(event)
            case StageEntered() if self._attempt:
                self._attempt.enter(event)
            case WarmupStepTimed() | StepsTimed() if self._attempt:
                self._attempt.take_steps(event)
            case OutOfMemory():
                self._oom = event
            case ResultReported():
                self._take_block(event)
            case TelemetrySampled():
                self._disturb(self._log.take(event))
                if self._attempt is not None:
                    self._attempt.samples.append(self._log.samples[-1])
            case PassEnded():
                self._end_pass(event)
            case RoundDisturbed():
                self._rounds.disturb(event.round, event.why)
            case ClockMoved():
                self._disturb(self._log.move_clock(event))
            case RunEnded():
                self.status, self.ended_ns = event.status, event.t_ns
            case _:
                pass
        self.last_ns = event.t_ns

    @property
    def next_round(self) -> int:
        return max(self._rounds.attempts, default=0) + 1

    @property
    def _attempt(self) -> Attempt | None:
        """The current round; None in another pass and between passes."""
        if self._open is None or self._open.name != "timing":
            return None
        return self._rounds.attempts[self._open.round]

    def resume(self) -> None:
        """Continue the run: discard its end so far."""
        self._close_torn()
        self._reopen()
        self.resumed = self.started

    def abandon(self) -> None:
        """Mark the run as interrupted: it has no supervisor, whether or not that wrote an end."""
        self._close_torn()
        self.status = self.status or self._before or "killed"

    def _close_torn(self) -> None:
        if self._open is not None:
            self._end_pass(
                PassEnded(
                    t_ns=self.last_ns,
                    name=self._open.name,
                    outcome="killed",
                    detail="its supervisor was killed",
                    seconds=(self.last_ns - self._open.t_ns) / 1e9,
                    exit_code=None,
                    round=self._open.round,
                )
            )

    def _reopen(self) -> None:
        if self.status is not None:
            self._before, self.status, self.ended_ns = self.status, None, None

    def status_of_all(self) -> Outcome:
        """Status of a resumed run that ends again: an added round does not make it worse."""
        rows = self._pass_records(self._all_blocks(self.rounds()))
        is_whole = len(rows) == len(self.header.passes)
        finished = sum(one.outcome == "finished" for one in self.rounds())
        bad = [row.outcome for row in rows if row.outcome != "finished"]
        if is_whole and not bad and finished >= self.header.repeat:
            return "finished"
        return self._before or (bad[0] if bad else "killed")

    def _start_pass(self, event: PassStarted) -> None:
        self._close_torn()
        self._reopen()
        self._open, self._oom, self._alive = event, None, None
        self._worker_pids.add(event.pid)
        if event.partner_pid is not None:  # on the device it is no other tenant
            self._worker_pids.add(event.partner_pid)
        if event.name == "timing":
            self._rounds.start(event)

    def _describe(self, event: DeviceDescribed) -> None:
        """Merge facts on device and torch; a round on other ones than the run's does not count."""
        merged = merge_environments(self.environment, event.facts)
        if self._attempt is not None and self._attempt.started.round > 1:
            for fact in (device_name, torch_version):
                before, now = fact(self.environment), fact(merged)
                if before and now != before:
                    self._attempt.disturbed = f"measured with {now}, earlier rounds with {before}"
                    return
        self.environment = merged

    def _take_block(self, event: ResultReported) -> None:
        if event.block == "oom":
            self._alive = msgspec.convert(event.data, OomSnapshot)
            return
        block = msgspec.convert(event.data, _TYPES[event.block])
        blocks = self._attempt.blocks if self._attempt else self._blocks
        blocks[event.block] = block
        if isinstance(block, WatchedJob):
            self._worker_pids.update(row.pid for row in block.ranks)
        if isinstance(block, Distributed):
            # Process ids of this host: other hosts have their own.
            self._worker_pids.update(row.pid for row in block.rows if not row.host)
            before, now = nodes(self.environment), [host.node or "" for host in block.hosts]
            is_later = self._attempt is not None and self._attempt.started.round > 1
            if is_later and now != before:
                words = ["+".join(names) or "one host" for names in (now, before)]
                self._disturb(f"measured on {words[0]}, earlier rounds on {words[1]}")

    def _end_pass(self, event: PassEnded) -> None:
        record = PassRecord(
            name=event.name,
            outcome=event.outcome,
            detail=event.detail,
            seconds=event.seconds,
            log_tail=last_lines(self.run.log_path(event.name, event.round), inside=self.run.path),
            oom=self._described_oom(),
            neighbours=event.neighbours,
        )
        if event.name == "timing":
            self._rounds.end(event, record)
        self._passes[event.name] = record
        self._open = None

    def rounds(self) -> list[Round]:
        return self._rounds.rounds(self._log.device_index, frozenset(self._worker_pids))

    def _disturb(self, why: str) -> None:
        if why and self._attempt is not None:
            self._attempt.disturbed = why

    def _all_blocks(self, rounds: list[Round]) -> dict[str, Any]:
        return self._rounds.blocks(rounds) | self._blocks

    def _pass_records(self, blocks: dict[str, Any]) -> list[PassRecord]:
        rows = dict(self._passes)
        if (timing := self._rounds.pass_record()) is not None:
            rows["timing"] = timing
        return [
            msgspec.structs.replace(row, step_ms=_step_ms(row.name, blocks))
            for row in rows.values()
        ]

    def _described_oom(self) -> Oom | None:
        if self._oom is None:
            return None
        capability = compute_capability(self.environment)
        return describe_oom(self._oom, self._alive, self.header.spec, capability)

    def record(self) -> Record:
        """The record of everything so far, findings included."""
        spec = self.header.spec
        prediction = predict(spec, compute_capability(self.environment))
        peak_key = spec.precision_row.peak_key
        roof, no_roof = roof_of(
            spec.device, spec.precision, peak_key, self.environment, self.header.peak
        )
        rounds = self.rounds()
        blocks = self._all_blocks(rounds)
        passes = self._pass_records(blocks)
        record = Record(
            id=self.header.id,
            identity=spec.identity,
            status=self.status or "running",
            created_ns=self.header.created_ns,
            ended_ns=self.ended_ns,
            spec=_spec_of_record(spec, self.environment),
            parameters=prediction.parameters or own_parameters(self.environment),
            environment=self.environment,
            prediction=prediction_to_store(prediction, spec),
            passes=passes,
            **blocks,
            telemetry=self._log.summary(
                self._rounds.measured(rounds), frozenset(self._worker_pids)
            ),
            missing=reasons_of_missing(self.header, blocks, passes, self._log.missing),
        )
        timing = _with_mfu(record.timing, spec, roof, no_roof, prediction)
        timing = timing and with_bandwidth(timing, roof, no_roof)
        timing = timing and self._with_energy(timing, rounds)
        record = msgspec.structs.replace(
            record,
            timing=timing,
            kernels=under_roof(record.kernels, timing, roof, no_roof),
            memory=record.memory
            and (record.memory if spec.is_job else reconcile(record.memory, spec, prediction)),
            nsys=nsys_under_roof(record.nsys, timing, roof, no_roof),
        )
        lost = [lines_lost(self.lines_lost)] if self.lines_lost else []
        return msgspec.structs.replace(record, findings=[*lost, *findings_of(record)])

    @property
    def device(self) -> str:
        """Device of the spec; of a watched command that of its processes, once it is known."""
        return str(_spec_of_record(self.header.spec, self.environment)["device"])

    def _with_energy(self, timing: Timing, rounds: list[Round]) -> Timing:
        tokens = timing.tokens_per_second
        job = self._all_blocks(rounds).get("job")
        ranks = self.header.spec.ranks if job is None else job.world_size
        if any(row.duet for row in rounds):
            energy: Energy | str = (
                "two processes took turns on the device; `ab --one-at-a-time` separates them"
            )
        elif ranks > 1 and self.device != "cpu":
            energy = "the energy of several GPUs is not read"
        else:
            energy = self._log.energy(
                self._rounds.measured_steps(rounds),
                self.device,
                tokens and tokens * timing.step.median_ms / 1e3,
            )
        if isinstance(energy, str):
            return msgspec.structs.replace(timing, missing=timing.missing | {"energy": energy})
        return msgspec.structs.replace(timing, energy=energy)


def _spec_of_record(spec: RunSpec, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the settings; the device of a watched command is known once its processes use it."""
    device = environment.get("settings", {}).get("device") if spec.is_job else None
    return spec.known() | ({"device": device} if device else {})


def _step_ms(name: str, blocks: dict[str, Any]) -> float | None:
    row = PASSES.get(name)
    if row is None or not row.step_ms or row.block not in blocks:
        return None
    step_ms: float | None = attrgetter(row.step_ms)(blocks[row.block])
    return step_ms


def _with_mfu(
    timing: Timing | None, spec: RunSpec, roof: Roof | None, no_roof: str, prediction: Prediction
) -> Timing | None:
    if timing is None or spec.is_own:
        return timing
    if not spec.has_model or spec.ranks > 1:
        missing = timing.missing | {"mfu": "FLOPs are known for one model on one device"}
        return msgspec.structs.replace(timing, missing=missing)
    return with_mfu(timing, roof, no_roof, prediction.causal_step_flops)


def known_environment(run: RunDirectory) -> dict[str, Any]:
    """Return the environment of the run's record; empty if it cannot be read."""
    with suppress(DamagedFileError):
        return run.record().environment
    return {}
