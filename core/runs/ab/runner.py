"""Runs an experiment: block after block of fresh processes until the verdict stands.

``python -P -m sysbench.core.runs.ab.runner EXPERIMENT_DIRECTORY`` is what the TUI starts
detached; the ``ab`` command consumes the same generator in its own process.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...analysis.verdict.bounds import MOST_BLOCKS
from ...analysis.verdict.records import verdict_of
from ...analysis.verdict.verdict import Verdict, gate
from ...record.events import AnyEvent
from ...record.record import Record
from ...record.timing import Round
from ...storage import locked
from ..builder import load_record
from ..directory import RunDirectory
from ..supervisor import Cancellation, add_round, disturb_round
from .disturbance import disturbance
from .experiment import Ended, Ending, ExperimentDirectory, Side

MOST_REPEATS = 2
"""Repeats of one disturbed round; after them the neighbour is part of the machine."""


class RoundStarting(msgspec.Struct, frozen=True, kw_only=True):
    """The next round begins. ``again`` says why it repeats one; else it is empty."""

    block: int
    position: int
    side: Side
    again: str = ""


class RoundFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A round is over, counting or not."""

    side: Side
    round: Round


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the blocks so far."""

    blocks: int
    verdict: Verdict


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment is over, for now if it was cancelled or failed."""

    ended: Ended


Progress = RoundStarting | RoundFinished | Judged | Stopped | AnyEvent


def run_experiment(
    directory: ExperimentDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[Progress]:
    """Measure until the verdict stands, or the experiment's limits are reached.

    Rounds that an earlier process of the experiment finished are kept. The last item is Stopped.

    Args:
        directory: The experiment, fresh or cut short.
        wait: Wait for the device if another run measures on it.
        cancel: Ends the experiment when set; it can go on later.

    Raises:
        BusyError: Another process works on this experiment.
        DamagedFileError: The plan cannot be read.
        NotFoundError: One of its runs was deleted.
    """
    with locked(directory.lock_path, who=f"experiment {directory.id}"):
        yield from _Under(directory, wait, cancel or Cancellation()).blocks()


class _Under:
    """One experiment under way."""

    def __init__(self, directory: ExperimentDirectory, wait: bool, cancel: Cancellation) -> None:
        self.directory = directory
        self.plan = directory.experiment()
        self.runs: dict[Side, RunDirectory] = {"A": directory.run("A"), "B": directory.run("B")}
        self.wait = wait
        self.cancel = cancel
        self.began = time.monotonic()
        self.longest_block = 0.0
        self.failed = ""

    def blocks(self) -> Iterator[Progress]:
        """Blocks until something ends the experiment."""
        block = 0
        while True:
            began = time.monotonic()
            yield from self.block(block)
            self.longest_block = max(self.longest_block, time.monotonic() - began)
            if self.failed or self.cancel.is_set():
                break
            block += 1
            verdict = self.verdict()
            yield Judged(blocks=block, verdict=verdict)
            if self.stops(verdict, block):
                break
        yield self.end(block)

    def block(self, block: int) -> Iterator[Progress]:
        """The block's four rounds, but for those that are there already."""
        for position, side in enumerate(self.plan.order(block)):
            done = self.rounds_at(side, block, position)
            while not any(row.counts for row in done):
                if self.cancel.is_set() or self.failed:
                    return
                again = done[-1].disturbed or done[-1].outcome if done else ""
                yield RoundStarting(block=block, position=position, side=side, again=again)
                disturbed = sum(bool(row.disturbed) for row in done)
                yield from self.one_round(side, block, position, disturbed)
                done = self.rounds_at(side, block, position)

    def rounds_at(self, side: Side, block: int, position: int) -> list[Round]:
        """The attempts at one place of a block."""
        place = (block, position)
        return [row for row in self.rounds(side) if (row.block, row.position) == place]

    def one_round(self, side: Side, block: int, position: int, repeats: int) -> Iterator[Progress]:
        """One fresh process; marked if a neighbour came, unless it was repeated before."""
        run = self.runs[side]
        earlier = [*self.rounds("A"), *self.rounds("B")]
        yield from add_round(
            run,
            experiment=self.plan.id,
            block=block,
            position=position,
            side=side,
            wait=self.wait,
            cancel=self.cancel,
        )
        record = self.record(side)
        row = record.timing.rounds[-1] if record.timing and record.timing.rounds else None
        ended = record.pass_named("timing")
        if ended is None or ended.outcome != "finished":
            # A round that a person or a signal ended is torn, and measured again on resuming.
            if not self.cancel.is_set():
                self.failed = f"a round of {side}: {ended.detail if ended else record.status}"
        elif row and repeats < MOST_REPEATS and (why := disturbance(row, earlier)):
            disturb_round(run, row.index, why)
            row = self.rounds(side)[-1]
        if row:
            yield RoundFinished(side=side, round=row)

    def rounds(self, side: Side) -> list[Round]:
        """The rounds that this experiment measured of a side."""
        timing = self.record(side).timing
        rows = timing.rounds if timing else []
        return [row for row in rows if row.experiment == self.plan.id]

    def record(self, side: Side) -> Record:
        return load_record(self.runs[side])

    def verdict(self) -> Verdict:
        return verdict_of(self.record("A"), self.record("B"), smallest=self.plan.smallest)

    def stops(self, verdict: Verdict, blocks: int) -> bool:
        """Whether the verdict stands, or another block would exceed a limit."""
        if verdict.verdict == "not the same computation":
            return True
        if self.plan.gate is not None:
            decided = gate(verdict, self.plan.gate) != "not decidable"
        else:
            decided = verdict.verdict != "not decidable"
        return decided or blocks >= MOST_BLOCKS or self.is_out_of_time

    @property
    def is_out_of_time(self) -> bool:
        """Whether another block as long as the longest would end after the limit."""
        spent = time.monotonic() - self.began
        return spent + self.longest_block > 60 * self.plan.max_minutes

    def end(self, blocks: int) -> Stopped:
        """Keep the end."""
        verdict = self.verdict()
        ending, detail = self._ending(verdict, blocks)
        seconds = time.monotonic() - self.began
        ended = Ended(ending=ending, detail=detail, verdict=verdict, seconds=seconds)
        self.directory.write_end(ended)
        return Stopped(ended=ended)

    def _ending(self, verdict: Verdict, blocks: int) -> tuple[Ending, str]:
        if self.failed:
            return "failed", self.failed
        if self.cancel.is_set():
            return "cancelled", f"stopped on request after {blocks} blocks; it can go on"
        if self.plan.gate is not None and gate(verdict, self.plan.gate) != "not decidable":
            return "decided", f"the gate is decided after {blocks} blocks"
        if verdict.verdict != "not decidable":
            return "decided", f"decided after {blocks} blocks"
        if blocks >= MOST_BLOCKS:
            return "out-of-rounds", f"{blocks} blocks decided nothing"
        return "out-of-time", f"the limit of {self.plan.max_minutes:g} minutes was reached"


def main() -> int:
    """Run the experiment directory named on the command line to its end, quietly."""
    cancel = Cancellation()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: cancel.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for _ in run_experiment(ExperimentDirectory(Path(sys.argv[1])), cancel=cancel):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
