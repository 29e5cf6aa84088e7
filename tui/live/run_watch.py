"""Follow a live run: its state, computed from its events."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.errors import DamagedFileError, SysbenchError
from sysbench.core.formatting import counted, milliseconds
from sysbench.core.machine.sample import Sample
from sysbench.core.record import events
from sysbench.core.record.blocks import why_left_out
from sysbench.core.record.compile import Compile
from sysbench.core.record.environment import node
from sysbench.core.record.record import Record
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.spec.own_model import JOB
from sysbench.core.storage import open_regular
from sysbench.core.tables.cells import literal
from sysbench.tui.text import STAGE_MARKS, STAGE_WORDS, outcome_text, round_words, time_of_day

MAX_STEPS = 4000
MAX_SAMPLES = 1200
MAX_LINES = 500
GRACE_SECONDS = 20.0
LOG_CHUNK_BYTES = 65536


@dataclass(slots=True)
class LiveView:
    """State of a run after the events so far; `take` applies the next one.

    Attributes:
        left_out: Reasons why passes do not start.
        stop_reason: Why the timing pass stopped measuring; empty until then.
        step_ends_ns: End of each step in ``steps_ms``.
        ranks: Newest state of the ranks of a watched command.
        windows: Windows of a watched command whose kernels or memory are in the record.
    """

    spec: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, str] = field(default_factory=dict)
    repeat: int = 1
    current: str = ""
    round: int = 1
    stage: str = ""
    began_ns: int = 0
    last_ns: int = 0
    first_step_ms: float | None = None
    warmup_ms: list[float] = field(default_factory=list)
    settled: bool | None = None
    steps_ms: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    step_count: int = 0
    phases_ms: dict[str, deque[float]] = field(default_factory=dict)
    median_ms: float | None = None
    half_width: float | None = None
    progress: tuple[str, int, int] | None = None
    pass_began_ns: int = 0
    stage_began_ns: int = 0
    pass_seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    warmup_ends_ns: list[int] = field(default_factory=list)
    step_ends_ns: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    stepped_ns: int = 0
    readings: list[events.MemoryRead] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    marks: list[tuple[int, str]] = field(default_factory=list)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    line_count: int = 0
    status: str = "running"
    left_out: dict[str, str] = field(default_factory=dict)
    stop_reason: str = ""
    ranks: events.RanksRead | None = None
    windows: int = 0

    @property
    def is_job(self) -> bool:
        return self.spec.get("workload") == JOB

    @property
    def round_text(self) -> str:
        """``round 2 of 5`` while a timing pass of several rounds runs; else empty."""
        return round_words(self.round, self.repeat) if self.current == "timing" else ""

    def say(self, line: str) -> None:
        """Add a line to the log; ``line_count`` also counts dropped lines."""
        self.lines.append(line)
        self.line_count += 1

    def phase_medians(self) -> dict[str, float]:
        return {name: statistics.median(times) for name, times in self.phases_ms.items() if times}

    def take(self, event: events.AnyEvent) -> None:
        self.last_ns = max(self.last_ns, event.t_ns)
        mark = mark_of(event, self.current)
        if self.is_job and mark == "timing":
            mark = "command"
        if mark and (not self.marks or self.marks[-1][1] != mark):
            self.marks.append((event.t_ns, mark))
        match event:
            case events.TelemetrySampled():
                self.samples.append(msgspec.convert(event.sample, Sample))
            case events.StepsTimed():
                self._take_steps(event)
            case events.WarmupStepTimed():
                self.warmup_ms.append(event.step_ms)
                self.warmup_ends_ns.append(event.t_ns)
                self.stepped_ns = event.t_ns
            case events.StepCounted():
                self.progress = ("step", event.done, event.total)
            case events.MemoryRead():
                self.readings.append(event)
            case events.RanksRead():
                self.ranks = event
            case events.ResultReported(block="kernels" | "memory") if self.is_job:
                self.windows += 1
            case events.ResultReported(block="timing") if not self.is_job:
                self.stop_reason = str(event.data.get("stop_reason", ""))
            case events.WorkStepped():
                self.progress = (event.what, event.done, event.total)
                self.counts[event.what] = event.done
            case _:
                self._take_rare(event)

    def _take_steps(self, event: events.StepsTimed) -> None:
        self.steps_ms.extend(event.step_ms)
        self.step_count = event.first_index + len(event.step_ms)
        self.median_ms, self.half_width = event.median_ms, event.half_width
        self.stepped_ns = event.t_ns
        # The event arrives at the end of the last step of a batch.
        ends_ns = [event.t_ns]
        for step_ms in reversed(event.step_ms[1:]):
            ends_ns.append(ends_ns[-1] - round(step_ms * 1e6))
        self.step_ends_ns.extend(reversed(ends_ns))
        for name, values in event.phases_ms.items():
            self.phases_ms.setdefault(name, deque(maxlen=MAX_STEPS)).extend(values)

    def _take_rare(self, event: events.AnyEvent) -> None:
        text = ""
        match event:
            case events.RunStarted():
                self.began_ns, self.spec = event.t_ns, event.spec
                self.environment = event.environment
                self.passes = dict.fromkeys(event.passes, "waiting")
                self.repeat = event.repeat
                text = f"run {event.run} started"
            case events.PassStarted():
                self._start_pass(event)
                text = f"{self._pass_words} pass: worker {event.pid}"
                if self.is_job:
                    text = f"the command is process {event.pid}; its output is in its terminal"
            case events.StageEntered():
                self._end_stage(event.t_ns)
                self.stage, self.progress = event.stage, None
                self.stage_began_ns = event.t_ns
                if not self.is_job:
                    text = f"{self.current}: {STAGE_WORDS[event.stage]}"
            case events.FirstStepTimed():
                self.first_step_ms = event.step_ms
                text = f"first step {milliseconds(event.step_ms)}"
            case events.WarmupSettled():
                self.settled = event.settled
                how = "settled after" if event.settled else "did not settle in"
                text = f"warm-up {how} {counted(event.steps, 'step')}"
            case events.Noticed():
                text = event.message
            case events.OutOfMemory() | events.WorkerFailed():
                text = event.message
            case events.PassEnded():
                self.passes[event.name] = event.outcome
                self._end_stage(event.t_ns)
                self.pass_seconds[event.name] = event.seconds
                self._leave_out()
                ended = outcome_text(event.outcome)
                detail = "" if event.detail in ("", ended) else f": {event.detail}"
                text = event.detail if self.is_job else f"{self._pass_words} pass {ended}{detail}"
            case events.RoundDisturbed() if event.why:
                text = f"round {event.round} does not count: {event.why}"
            case events.ClockMoved():
                text = f"the clock was set by {event.seconds:+.0f} s, or the machine slept"
            case events.RunEnded():
                self.status = event.status
                text = f"run {outcome_text(event.status)}"
        if text:
            self.say(f"{time_of_day(event.t_ns)}  {literal(text)}")

    @property
    def _pass_words(self) -> str:
        return f"{self.current}, {self.round_text}:" if self.round_text else self.current

    def _start_pass(self, event: events.PassStarted) -> None:
        """Start a pass; another round of the timing pass resets its steps."""
        self.current, self.stage, self.progress = event.name, "", None
        self.passes[event.name] = "running"
        self.pass_began_ns = self.stepped_ns = event.t_ns
        self.stages[event.name], self.counts = {}, {}
        self.pass_seconds.pop(event.name, None)
        if event.name == "memory":
            self.readings = []
        self.status, self.round = "running", event.round
        if event.name == "timing":
            self.stop_reason = ""
        if event.round > 1:
            self.first_step_ms = self.settled = self.median_ms = self.half_width = None
            self.step_count = 0
            self.warmup_ms, self.warmup_ends_ns, self.phases_ms = [], [], {}
            self.steps_ms.clear()
            self.step_ends_ns.clear()

    def _leave_out(self) -> None:
        for name, state in self.passes.items():
            if state == "waiting" and (why := why_left_out(name, self.passes.items())):
                self.passes[name], self.left_out[name] = "left-out", why

    def _end_stage(self, t_ns: int) -> None:
        """Add the seconds of the finished stage; a pass can compile several times."""
        if self.stage and self.current:
            seconds = self.stages.setdefault(self.current, {})
            elapsed = (t_ns - self.stage_began_ns) / 1e9
            seconds[self.stage] = seconds.get(self.stage, 0.0) + elapsed
        self.stage = ""


def mark_of(event: events.AnyEvent, current: str) -> str:
    match event:
        case events.PassStarted():
            return event.name
        case events.StageEntered() if current == "timing":
            return STAGE_MARKS.get(event.stage, "")
        case _:
            return ""


def file_stamp(path: Path) -> tuple[int, int]:
    """Return time and size of the last write to a file, which change with its content."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


class RunWatch:
    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.view = LiveView()
        self._tail = run.tail()
        self._log_offsets: dict[Path, int] = {}
        self._began = time.monotonic()

    @property
    def over(self) -> bool:
        return self.view.status != "running"

    @property
    def seconds(self) -> float:
        """Seconds since the start of the supervisor, or the duration of an ended run."""
        return (self.now_ns - self.view.began_ns) / 1e9 if self.view.began_ns else 0.0

    @property
    def now_ns(self) -> int:
        """Now, or the end of the run, in nanoseconds since the epoch."""
        return self.view.last_ns if self.over else max(time.time_ns(), self.view.last_ns)

    def poll(self) -> bool:
        """Read new events and log lines; True if anything changed."""
        alive = self.run.is_live()
        changed = False
        # Check liveness first, so that the last event of an ended run is on disk.
        for event in self._tail.read():
            self.view.take(event)
            changed = True
        changed |= self._read_log()
        has_had_time = self.view.began_ns or time.monotonic() - self._began > GRACE_SECONDS
        if not alive and not self.over and has_had_time:
            self.view.status = "lost"
            self.view.say("the supervisor exited without a final event")
            changed = True
        return changed

    def _read_log(self) -> bool:
        name = self.view.current
        if not name:
            return False
        path = self.run.log_path(name, self.view.round)
        try:
            with open_regular(path) as file:
                file.seek(self._log_offsets.get(path, 0))
                data = file.read(LOG_CHUNK_BYTES)
        except (FileNotFoundError, DamagedFileError):
            return False
        complete_lines, newline, _ = data.rpartition(b"\n")
        if not newline and len(data) == LOG_CHUNK_BYTES:
            complete_lines = data  # a very long line is shown in pieces
        self._log_offsets[path] = (
            self._log_offsets.get(path, 0) + len(complete_lines) + len(newline)
        )
        for line in complete_lines.decode("utf-8", "replace").splitlines():
            self.view.say(f"{name}│ {literal(line.expandtabs())}")
        return bool(complete_lines)


MAX_RUNS = 5
"""Newest runs to use; older ones may have another driver or torch."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Durations of finished passes of the same spec on the same host.

    Attributes:
        seconds: By pass, a value per run; for the timing pass the mean of its rounds.
        stages: By pass, the seconds of its stages in the newest run.
        compile: Compile block of the newest run that has one.
    """

    seconds: Mapping[str, list[float]] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compile: Compile | None = None

    def expected(self, name: str) -> float | None:
        """Median seconds of a pass or round; None if none finished before."""
        seconds = self.seconds.get(name)
        return statistics.median(seconds) if seconds else None

    def count(self, name: str) -> int:
        return len(self.seconds.get(name, ()))


def left_seconds(view: LiveView, earlier: Earlier, now_ns: int) -> float | None:
    """Estimate the remaining seconds of a run from earlier passes.

    None if a pass never finished before, or if the current one already takes longer.
    """
    left = 0.0
    for name, state in view.passes.items():
        if state not in ("waiting", "running"):
            continue
        expected = earlier.expected(name)
        if expected is None:
            return None
        rounds = view.repeat if name == "timing" else 1
        if state == "running":
            rounds -= view.round if name == "timing" else 1
            rest = expected - (now_ns - view.pass_began_ns) / 1e9
            if rest < 0:
                return None
            left += rest
        left += max(rounds, 0) * expected
    return left


def earlier_runs(run: RunDirectory, environment: Mapping[str, Any]) -> Earlier:
    """Collect durations of earlier runs of the same spec in the environment that the supervisor
    recorded.

    Unreadable runs are skipped. Raises SysbenchError if the run itself cannot be read.
    """
    seconds: dict[str, list[float]] = {}
    stages: Mapping[str, Mapping[str, float]] = {}
    compilation: Compile | None = None
    for other, record in islice(_same(run, environment), MAX_RUNS):
        for row in record.passes:
            if row.outcome == "finished":
                rounds = len(record.timing.rounds) if row.name == "timing" and record.timing else 1
                seconds.setdefault(row.name, []).append(row.seconds / max(rounds, 1))
        compilation = compilation or record.compile
        stages = stages or _stages(other)
    return Earlier(seconds, stages, compilation)


def _same(
    run: RunDirectory, environment: Mapping[str, Any]
) -> Iterator[tuple[RunDirectory, Record]]:
    header = run.header()
    identity, runs = header.spec.identity, run.path.parent
    for entry in Library(runs.parent).entries(identity):
        if entry.identity != identity or entry.live or entry.created_ns >= header.created_ns:
            continue
        other = RunDirectory(runs / entry.id)
        with suppress(SysbenchError):  # the Library screen lists unreadable runs
            record = load_record(other)
            if _host(record.environment) == _host(environment):
                yield other, record


def _stages(run: RunDirectory) -> Mapping[str, Mapping[str, float]]:
    view = LiveView()
    for event in run.tail().read():
        view.take(event)
    return view.stages


def _host(environment: Mapping[str, Any]) -> tuple[object, ...]:
    cpu = environment.get("cpu") or {}
    facts = (cpu.get("model"), cpu.get("threads_allowed"), environment.get("nvidia"))
    return (node(environment), *facts)
