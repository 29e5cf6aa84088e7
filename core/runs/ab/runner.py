"""Runs an experiment: block after block of fresh processes until the verdict stands.

``python -P -m sysbench.core.runs.ab.runner EXPERIMENT_DIRECTORY`` runs detached, without output;
the ``ab`` command consumes the same generator in its own process.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...analysis.verdict.bounds import MOST_BLOCKS
from ...analysis.verdict.gate import gate
from ...analysis.verdict.records import other_computation, verdict_of
from ...analysis.verdict.verdict import Verdict
from ...errors import DamagedFileError, DeviceBusyError
from ...formatting import counted
from ...record.events import AnyEvent, PassEnded
from ...record.record import Record
from ...record.timing import Round
from ...storage import locked
from ..directory import RunDirectory
from ..records import load_record
from ..supervisor import Cancellation, add_round, disturb_round
from .disturbance import MOST_REPEATS, disturbance
from .experiment import Ended, Ending, ExperimentDirectory, Side

NO_WAIT = "--no-wait"
MOST_LOST = 1
"""Repeats of a round that a signal or silence ended; then the experiment fails."""


class RoundStarting(msgspec.Struct, frozen=True, kw_only=True):
    """The next round begins.

    Attributes:
        block: From 0.
        position: From 0 in its block.
        side: Whose spec is measured.
        again: Why the round at this place is repeated; empty for the first.
    """

    block: int
    position: int
    side: Side
    again: str = ""


class RoundFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A round is over, counting or not; one that left no record is not told."""

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

    Rounds that an earlier process of the experiment finished are kept, and the verdict of an
    experiment that was decided is only told again. The last item is Stopped. The device is held
    a round at a time: another experiment that waits for it may come in between.

    Args:
        directory: The experiment, fresh or cut short.
        wait: Wait for the device if another run measures on it; else that round fails.
        cancel: Ends the experiment when set; it can go on later.

    Raises:
        DeviceBusyError: Another process works on this experiment.
        DamagedFileError: The experiment or one of its runs cannot be read, or was deleted.
    """
    with locked(directory.lock_path, who=f"experiment {directory.id}"):
        yield from _Under(directory, wait, cancel or Cancellation()).blocks()


class _Under:
    """One experiment under way."""

    def __init__(self, directory: ExperimentDirectory, wait: bool, cancel: Cancellation) -> None:
        self.directory = directory
        self.experiment = directory.experiment()
        self.runs: dict[Side, RunDirectory] = {"A": directory.run("A"), "B": directory.run("B")}
        self.records = {side: load_record(run) for side, run in self.runs.items()}
        self.wait = wait
        self.cancel = cancel
        self.began = time.monotonic()
        self.last_block = 0.0
        self.failed = ""
        self.lost: Counter[tuple[int, int]] = Counter()
        self.again: dict[tuple[int, int], str] = {}
        self._judged: tuple[Record, Record, Verdict] | None = None

    def blocks(self) -> Iterator[Progress]:
        """Blocks until something ends the experiment."""
        self.directory.clear_end()
        self.judge_newest()
        while not self.stops():
            began = time.monotonic()
            yield from self.block(self.blocks_done())
            self.last_block = time.monotonic() - began
            if self.failed or self.cancel.is_set():
                break
            yield Judged(blocks=self.blocks_done(), verdict=self.verdict())
        yield self.end()

    def block(self, block: int) -> Iterator[Progress]:
        """The block's four rounds, but for those that are there already."""
        for position, side in enumerate(self.experiment.order(block)):
            while not any(row.counts for row in self.rounds_at(side, block, position)):
                if self.cancel.is_set() or self.failed or self.other_work():
                    return
                again = self.again.get((block, position), "")
                yield RoundStarting(block=block, position=position, side=side, again=again)
                yield from self.one_round(side, block, position)

    def one_round(self, side: Side, block: int, position: int) -> Iterator[Progress]:
        """One fresh process, judged by its end and by its neighbours."""
        ended: PassEnded | None = None
        try:
            for event in add_round(
                self.runs[side],
                experiment=self.experiment.id,
                block=block,
                position=position,
                side=side,
                wait=self.wait,
                cancel=self.cancel,
            ):
                ended = event if isinstance(event, PassEnded) else ended
                yield event
            if ended is not None:
                self.judge_end(side, (block, position), ended)
            self.records[side] = load_record(self.runs[side])
            self.judge_newest()
        except (DamagedFileError, DeviceBusyError) as error:
            # A run's directory that was deleted has ended its round already, with that reason.
            self.failed = self.failed or f"a round of {side}: {error}"
            return
        newest = [row for row in self.rounds(side) if ended and row.index == ended.round]
        for row in newest:
            if row.disturbed:
                self.again[block, position] = row.disturbed
            yield RoundFinished(side=side, round=row)

    def judge_end(self, side: Side, place: tuple[int, int], ended: PassEnded) -> None:
        """Decide whether a round that did not finish is measured again, now or on resuming."""
        if ended.outcome in ("finished", "cancelled"):
            return
        self.again[place] = ended.detail
        self.lost[place] += 1
        if ended.outcome not in ("killed", "hung") or self.lost[place] > MOST_LOST:
            self.failed = f"a round of {side}: {ended.detail}"

    def judge_newest(self) -> None:
        """Mark the newest round if a neighbour came, unless that round was repeated before.

        An earlier process of the experiment may have been killed between a round and its mark.
        """
        rows = sorted(
            (row for side in self.records for row in self.rounds(side)),
            key=lambda row: row.started_ns,
        )
        if not rows or not rows[-1].counts:
            return
        *earlier, newest = rows
        side: Side = "A" if newest.side == "A" else "B"
        place = (newest.block, newest.position)
        repeats = sum(bool(row.disturbed) and (row.block, row.position) == place for row in earlier)
        if repeats < MOST_REPEATS and (why := disturbance(newest, earlier)):
            disturb_round(self.runs[side], newest.index, why)
            self.records[side] = load_record(self.runs[side])

    def rounds_at(self, side: Side, block: int, position: int) -> list[Round]:
        """The attempts at one place of a block."""
        place = (block, position)
        return [row for row in self.rounds(side) if (row.block, row.position) == place]

    def rounds(self, side: Side) -> list[Round]:
        """The rounds that this experiment measured of a side."""
        timing = self.records[side].timing
        rows = timing.rounds if timing else []
        return [row for row in rows if row.experiment == self.experiment.id]

    def blocks_done(self) -> int:
        """Blocks before the first that lacks a round."""
        counted = {
            (row.block, row.position, row.side)
            for side in self.records
            for row in self.rounds(side)
            if row.counts
        }
        block = 0
        while all(
            (block, position, side) in counted
            for position, side in enumerate(self.experiment.order(block))
        ):
            block += 1
        return block

    def other_work(self) -> bool:
        """Whether the two sides' losses say that they do not compute the same."""
        return bool(other_computation(self.records["A"], self.records["B"]))

    def verdict(self) -> Verdict:
        """The verdict on the complete blocks, made once for the same rounds."""
        a, b = self.records["A"], self.records["B"]
        if self._judged is None or self._judged[0] is not a or self._judged[1] is not b:
            self._judged = a, b, verdict_of(a, b, smallest=self.experiment.smallest)
        return self._judged[2]

    def stops(self) -> bool:
        """Whether the verdict stands, or another block would exceed a limit."""
        done = self.blocks_done()
        if self.other_work():
            return True
        if not done:
            return False
        return self.is_decided(self.verdict()) or done >= MOST_BLOCKS or self.is_out_of_time

    def is_decided(self, verdict: Verdict) -> bool:
        """Whether no more rounds are needed: for the gate where there is one, else at all."""
        if self.experiment.gate is not None:
            return gate(verdict, self.experiment.gate) != "not decidable"
        return verdict.verdict != "not decidable"

    @property
    def is_out_of_time(self) -> bool:
        """Whether another block as long as the last would end after the limit."""
        spent = time.monotonic() - self.began
        return spent + self.last_block > 60 * self.experiment.max_minutes

    def end(self) -> Stopped:
        """Keep the end."""
        verdict = self.verdict()
        ending, detail = self._ending(verdict)
        seconds = time.monotonic() - self.began
        ended = Ended(ending=ending, detail=detail, verdict=verdict, seconds=seconds)
        self.directory.write_end(ended)
        return Stopped(ended=ended)

    def _ending(self, verdict: Verdict) -> tuple[Ending, str]:
        done = self.blocks_done()
        blocks = counted(done, "block")
        if self.failed:
            return "failed", self.failed
        if self.other_work():
            return "decided", "stopped at once: the two sides do not compute the same"
        if done and self.is_decided(verdict):
            what = "decided" if self.experiment.gate is None else "the gate is decided"
            return "decided", f"{what} after {blocks}"
        if self.cancel.is_set():
            return "cancelled", f"stopped on request after {blocks}; it can go on"
        if done >= MOST_BLOCKS:
            return "out-of-rounds", f"{blocks}, the most there are, decided nothing"
        limit = f"{self.experiment.max_minutes:g} minutes"
        return "out-of-time", f"after {blocks} another would have exceeded the limit of {limit}"


def main() -> int:
    """Run the experiment directory named on the command line to its end, quietly."""
    path, *options = sys.argv[1:]
    cancel = Cancellation()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: cancel.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wait = NO_WAIT not in options
    for _ in run_experiment(ExperimentDirectory(Path(path)), wait=wait, cancel=cancel):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
