"""Collect the rounds of a timing pass from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sysbench.core.compare.rounds import combined, counting, middle, partial_block, with_times
from sysbench.core.machine.sample import Sample
from sysbench.core.machine.telemetry_summary import conditions
from sysbench.core.record.events import (
    PassEnded,
    PassStarted,
    StageEntered,
    StepsTimed,
    WarmupStepTimed,
)
from sysbench.core.record.record import PassRecord
from sysbench.core.record.timing import Round
from sysbench.core.spec.spec import RunSpec

_FOREVER_NS = 2**63 - 1


@dataclass(slots=True)
class Attempt:
    """One process of the timing pass so far, with what it reported by block of the record.

    ``measured`` are first and last ``t_ns`` of its measured part, ``stepped_ns`` that of the last
    batch. ``warmup_ms`` and ``batches`` are kept until it reports a block. ``partial`` says that it
    was stopped on request, and its block is of the steps up to then; ``disturbed`` why it does not
    count.
    """

    started: PassStarted
    blocks: dict[str, Any] = field(default_factory=dict)
    measured: tuple[int, int] | None = None
    warmup_ms: list[float] = field(default_factory=list)
    batches: list[StepsTimed] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stepped_ns: int = 0
    partial: bool = False
    disturbed: str = ""
    ended: PassEnded | None = None
    record: PassRecord | None = None

    def enter(self, event: StageEntered) -> None:
        if event.stage == "measure":
            self.measured = (event.t_ns, _FOREVER_NS)
        else:
            self._stop_measuring(event.t_ns)

    def take_steps(self, event: WarmupStepTimed | StepsTimed) -> None:
        if isinstance(event, StepsTimed):
            self.batches.append(event)
            self.stepped_ns = event.t_ns
        else:
            self.warmup_ms.append(event.step_ms)

    def end(self, event: PassEnded, record: PassRecord, spec: RunSpec) -> None:
        """End the process. Keep the times if the user stopped it, but not after a crash."""
        self.ended, self.record = event, record
        self._stop_measuring(event.t_ns)
        if event.outcome == "cancelled" and "timing" not in self.blocks:
            block = partial_block(spec, self.warmup_ms, self.batches)
            if block is not None:
                self.blocks["timing"], self.partial = block, True
        self.warmup_ms, self.batches = [], []

    @property
    def measured_steps(self) -> tuple[int, int, int] | None:
        """First and last ``t_ns`` of its measured steps, and their number; None if unknown.

        A command that is timed as a whole is one step.
        """
        timing, job = self.blocks.get("timing"), self.blocks.get("job")
        if timing is None:
            return None
        if timing.of_command:
            return None if self.measured is None else (*self.measured, 1)
        if job is not None:
            span: tuple[int, int, int] | None = job.measured_span
            return span
        if self.measured is None or self.stepped_ns <= self.measured[0]:
            return None
        return self.measured[0], self.stepped_ns, len(timing.samples_ms)

    def _stop_measuring(self, t_ns: int) -> None:
        if self.measured is not None:
            self.measured = (self.measured[0], min(self.measured[1], t_ns))


class RoundLog:
    """All processes of the timing pass of one run, by the number of their round."""

    def __init__(self, repeat: int, spec: RunSpec) -> None:
        self.repeat = repeat
        self.spec = spec
        self.attempts: dict[int, Attempt] = {}

    @property
    def is_listed(self) -> bool:
        """Whether the record lists rounds: false for a single undisturbed, whole process."""
        attempts = self.attempts.values()
        is_marked = any(
            attempt.disturbed or attempt.partial or attempt.started.experiment
            for attempt in attempts
        )
        return len(attempts) > 1 or self.repeat > 1 or is_marked

    def start(self, event: PassStarted) -> Attempt:
        self.attempts[event.round] = Attempt(event)
        return self.attempts[event.round]

    def end(self, event: PassEnded, record: PassRecord) -> None:
        """End a round; one whose process could not start begins and ends at once."""
        attempt = self.attempts.get(event.round)
        if attempt is None or attempt.ended is not None:
            attempt = self.start(
                PassStarted(t_ns=event.t_ns, name=event.name, pid=0, round=event.round)
            )
        attempt.end(event, record, self.spec)

    def disturb(self, index: int, why: str) -> None:
        """Exclude a round; an empty reason includes it again."""
        if index in self.attempts:
            self.attempts[index].disturbed = why

    def rounds(self, device_index: int | None, own_pids: frozenset[int]) -> list[Round]:
        """Return the completed rounds; arguments as of `conditions`."""
        rounds = []
        for index, attempt in sorted(self.attempts.items()):
            if attempt.ended is None:
                continue
            started, ended = attempt.started, attempt.ended
            around = conditions(
                attempt.samples,
                device_index,
                lived=(started.t_ns, ended.t_ns),
                measured=attempt.measured or (ended.t_ns, started.t_ns),
                own_pids=own_pids,
            )
            process = Round(
                index=index,
                started_ns=started.t_ns,
                outcome=ended.outcome,
                cpu_percent=ended.cpu_percent,
                own_cpu_percent=ended.own_cpu_percent,
                disturbed=attempt.disturbed,
                experiment=started.experiment,
                block=started.block,
                position=started.position,
                side=started.side,
                duet=started.duet,
                **msgspec.structs.asdict(around),
            )
            rounds.append(with_times(process, attempt.blocks.get("timing")))
        return rounds

    def blocks(self, rounds: Sequence[Round]) -> dict[str, Any]:
        """Return the pass's blocks: the timing of all rounds, the others of the middle one."""
        chosen = middle(rounds)
        if chosen is None or not self.is_listed:
            newest_first = [attempt for _, attempt in sorted(self.attempts.items(), reverse=True)]
            return next((attempt.blocks for attempt in newest_first if attempt.blocks), {})
        timings = {
            index: attempt.blocks["timing"]
            for index, attempt in self.attempts.items()
            if "timing" in attempt.blocks
        }
        return self.attempts[chosen.index].blocks | {"timing": combined(rounds, timings)}

    def measured(self, rounds: Sequence[Round]) -> list[tuple[int, int]]:
        """Return first and last measured ``t_ns`` of each round that counts, else of all."""
        indices = {round.index for round in counting(rounds)} or self.attempts.keys()
        parts = [self.attempts[index].measured for index in sorted(indices)]
        return [part for part in parts if part is not None]

    def measured_steps(self, rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
        """Return `Attempt.measured_steps` of each round that counts, else of all."""
        indices = {round.index for round in counting(rounds)} or self.attempts.keys()
        spans = [self.attempts[index].measured_steps for index in sorted(indices)]
        return [span for span in spans if span is not None]

    def pass_record(self) -> PassRecord | None:
        """Return the record of the last round that finished, or else of the last one."""
        ended = [
            (attempt, attempt.record)
            for _, attempt in sorted(self.attempts.items())
            if attempt.record
        ]
        if not ended:
            return None
        finished = [record for _, record in ended if record.outcome == "finished"]
        record = finished[-1] if finished else ended[-1][1]
        if len(ended) == 1:
            return record
        count = f"{len(finished)} of {len(ended)} rounds finished"
        return msgspec.structs.replace(
            record,
            seconds=sum(attempt.seconds for _, attempt in ended),
            detail=record.detail if len(finished) in (0, len(ended)) else count,
        )
