"""Run an experiment: pairs or blocks of fresh processes until the verdict is decided.

``python -P -m sysbench.core.experiments.experiment_runner EXPERIMENT_DIRECTORY`` runs detached,
without output; the ``ab`` command consumes the same generator in its own process.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from sysbench.core.compare.bounds import MAX_BLOCKS, MAX_DUET_PAIRS
from sysbench.core.compare.compared_records import (
    duet_pairs,
    other_computation,
    round_blocks,
    verdict_of,
)
from sysbench.core.compare.conditions import MAX_REPEATS, disturbance, place_of
from sysbench.core.compare.gate_rule import gate
from sysbench.core.compare.verdict import Verdict
from sysbench.core.errors import DamagedFileError, DeviceBusyError
from sysbench.core.experiments.experiment import (
    Ending,
    ExperimentDirectory,
    ExperimentEnd,
    Side,
)
from sysbench.core.formatting import counted
from sysbench.core.record.events import AnyEvent, PassEnded
from sysbench.core.record.job import Metric
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Round
from sysbench.core.runs.job_directory import Cancellation, work_until_signal
from sysbench.core.runs.run_directory import BEGIN_SECONDS, RunDirectory, load_record
from sysbench.core.runs.supervised_run import PassPlace
from sysbench.core.runs.supervisor import LOST_PARTNER, add_pair, add_round, disturb_round


def experiment_rounds(record: Record, experiment: str) -> list[Round]:
    rows = record.timing.rounds if record.timing else []
    return [row for row in rows if row.experiment == experiment]


NO_WAIT = "--no-wait"
_POLL_SECONDS = 0.3
MAX_LOST_REPEATS = 1
"""Repeats of a round that a signal or silence ended; then the experiment fails."""


class RoundStarting(msgspec.Struct, frozen=True, kw_only=True):
    """The next round begins.

    Attributes:
        again: Why this round is repeated; empty for the first attempt.
    """

    block: int
    position: int
    side: Side
    again: str = ""


class RoundFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A round ended. Rounds without a record emit no such event."""

    side: Side
    round: Round


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    blocks: int
    verdict: Verdict


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment ended, or can be resumed if it was cancelled or failed."""

    ended: ExperimentEnd


ExperimentEvent = RoundStarting | RoundFinished | Judged | Stopped | AnyEvent


def run_experiment(
    directory: ExperimentDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[ExperimentEvent]:
    """Measure until the verdict is decided, or the experiment's limits are reached.

    Earlier finished rounds are reused, and resuming a decided experiment repeats its verdict. The
    last event is Stopped. The device is held for one round at a time, so another experiment may run
    in between; without ``wait`` a round on a busy device fails.

    Raises:
        DeviceBusyError: Another process works on this experiment.
        DamagedFileError: The experiment or one of its runs cannot be read, or was deleted.
    """
    with directory.hold():
        yield from ExperimentRun(directory, wait, cancel or Cancellation()).blocks()


class ExperimentRun:
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
        self.is_of_commands = self.runs["A"].header().spec.is_job
        self._judged: tuple[Record, Record, Verdict] | None = None

    def blocks(self) -> Iterator[ExperimentEvent]:
        self.directory.clear_end()
        self.judge_newest()
        while not self.stops():
            began = time.monotonic()
            block = self.blocks_done()
            yield from self.pair(block) if self.in_pairs else self.block(block)
            self.last_block = time.monotonic() - began
            if self.failed or self.cancel.is_set():
                break
            if self.blocks_done():  # none if pairs were just given up
                yield Judged(blocks=self.blocks_done(), verdict=self.verdict())
        yield self.end()

    def block(self, block: int) -> Iterator[ExperimentEvent]:
        for position, side in enumerate(self.experiment.order(block)):
            place = (block, position)
            while not any(row.counts and place_of(row) == place for row in self.rounds(side)):
                if self.is_over():
                    return
                yield from self.one_round([side], block, position)

    @property
    def in_pairs(self) -> bool:
        return self.experiment.method == "duet"

    def pair(self, block: int) -> Iterator[ExperimentEvent]:
        order = self.experiment.order(block)
        while self.in_pairs and self.blocks_done() <= block and not self.is_over():
            yield from self.one_round(order, block, 0)

    def one_round(
        self, sides: Sequence[Side], block: int, position: int
    ) -> Iterator[ExperimentEvent]:
        """Measure a fresh process, or two that take turns.

        They are judged by their ends and by other processes.
        """
        place, ended = (block, position), dict[str, PassEnded]()
        again = self.again.get(place, "")
        for n, side in enumerate(sides, position):
            yield RoundStarting(block=block, position=n, side=side, again=again)
        try:
            for event in self.measure(sides, block, position):
                if isinstance(event, PassEnded):
                    ended[event.side] = event
                yield event
            ends = [side for side in sides if side in ended]
            lost = [side for side in ends if _is_lost(ended[side])]
            for side in (lost or ends)[:1]:  # both at once are one loss
                self.judge_end(side, place, ended[side])
            for side in sides:
                self.records[side] = load_record(self.runs[side])
            self.judge_newest()
        except (DamagedFileError, DeviceBusyError) as error:
            # The supervisor of a deleted run has ended its round already, with that reason.
            what = "a pair" if len(sides) > 1 else f"a round of {sides[0]}"
            self.failed = self.failed or f"{what}: {error}"
            return
        for side in ends:
            for row in experiment_rounds(self.records[side], self.experiment.id):
                if row.index == ended[side].round:
                    if row.disturbed and (len(sides) == 1 or place not in self.again):
                        self.again[place] = row.disturbed
                    yield RoundFinished(side=side, round=row)

    def give_up_pairs(self, why: str) -> None:
        self.experiment = msgspec.structs.replace(self.experiment, method="blocks", why_blocks=why)
        self.directory.write("experiment.json", self.experiment)

    def measure(self, sides: Sequence[Side], block: int, position: int) -> Iterator[AnyEvent]:
        runs, experiment = [self.runs[side] for side in sides], self.experiment
        places = [
            PassPlace(
                experiment=experiment.id, block=block, position=n, side=side, duet=len(sides) > 1
            )
            for n, side in enumerate(sides, position)
        ]
        if len(sides) > 1:
            pair = (runs[0], runs[1]), (places[0], places[1])
            return add_pair(*pair, wait=self.wait, cancel=self.cancel)
        if not self.is_of_commands:
            return add_round(runs[0], places[0], wait=self.wait, cancel=self.cancel)
        from sysbench.core.watch.command_round import add_command_round  # lazy: numpy

        what = experiment.metric or "steps", experiment.folder
        return add_command_round(runs[0], places[0], *what, wait=self.wait, cancel=self.cancel)

    def choose_metric(self, side: Side, place: tuple[int, int], ended: PassEnded) -> None:
        """Compare steps once a round of either side has some, or else wall times from now on.

        The first rounds ran with the recorder, so that those before a choice of wall times do not
        count.
        """
        counting = [row for each in self.records for row in self.rounds(each) if row.counts]
        metric: Metric = "steps"
        if ended.outcome != "finished":
            metric, why = "wall", f"{side} has no steps: wall times are compared"
            self.again[place] = why
            disturb_round(self.runs[side], ended.round, why)
            for row in counting:
                self.exclude(row, why)
        elif all(row.side == side for row in counting):
            return
        self.experiment = msgspec.structs.replace(self.experiment, metric=metric)
        self.directory.write("experiment.json", self.experiment)

    def judge_end(self, side: Side, place: tuple[int, int], ended: PassEnded) -> None:
        """Decide whether a round that did not finish is repeated, now or on resume."""
        if self.is_of_commands and not self.experiment.metric and ended.exit_code == 0:
            self.choose_metric(side, place, ended)
            return
        if not _is_lost(ended):
            return
        if ended.outcome == "oom" and self.in_pairs:
            self.give_up_pairs(f"both at once did not fit: {ended.detail}")
            return
        self.again[place] = ended.detail
        self.lost[place] += 1
        if ended.outcome not in ("killed", "hung") or self.lost[place] > MAX_LOST_REPEATS:
            self.failed = f"a round of {side}: {ended.detail}"

    def judge_newest(self) -> None:
        """Exclude the newest round or pair if it was disturbed, unless it was repeated before.

        An earlier process may have been killed between a round and this decision.
        """
        rows = sorted(
            (row for side in self.records for row in self.rounds(side)),
            key=lambda row: row.started_ns,
        )
        newest = rows[-1:]
        if self.in_pairs and rows:
            by_side = {row.side: row for row in rows if row.block == rows[-1].block}
            newest = list(by_side.values())
        counting = [row for row in newest if row.counts]
        if self.in_pairs and len(counting) == 1:
            self.exclude(counting[0], LOST_PARTNER)
        if len(counting) != (2 if self.in_pairs else 1):
            return
        earlier = [row for row in rows if row not in newest]
        why = next(filter(None, (self.why_repeated(row, earlier) for row in newest)), "")
        for row in newest if why else []:
            self.exclude(row, why)

    def why_repeated(self, newest: Round, earlier: Sequence[Round]) -> str:
        """Return the disturbance for which a round is measured again; empty if it counts."""
        repeats = sum(bool(row.disturbed) and place_of(row) == place_of(newest) for row in earlier)
        return disturbance(newest, earlier) if repeats < MAX_REPEATS else ""

    def exclude(self, row: Round, why: str) -> None:
        side: Side = "A" if row.side == "A" else "B"
        disturb_round(self.runs[side], row.index, why)
        self.records[side] = load_record(self.runs[side])

    def rounds(self, side: Side) -> list[Round]:
        rows = experiment_rounds(self.records[side], self.experiment.id)
        return [row for row in rows if row.duet == self.in_pairs]

    def blocks_done(self) -> int:
        """Return the number of blocks, or pairs, before the first incomplete one."""
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
        """Whether the two sides' losses show that they compute different things."""
        return bool(other_computation(self.records["A"], self.records["B"]))

    def verdict(self) -> Verdict:
        """Return the verdict on the complete blocks, cached for the same rounds."""
        a, b = self.records["A"], self.records["B"]
        if self._judged is None or self._judged[0] is not a or self._judged[1] is not b:
            self._judged = a, b, verdict_of(a, b, smallest=self.experiment.smallest)
        return self._judged[2]

    def is_over(self) -> bool:
        return self.cancel.is_set() or bool(self.failed) or self.other_work()

    def stops(self) -> bool:
        """Return whether the verdict is decided, or another block would exceed a limit."""
        done = self.blocks_done()
        if self.other_work():
            return True
        if not done:
            return False
        return self.is_decided(self.verdict()) or done >= self.most or self.is_out_of_time

    @property
    def most(self) -> int:
        return MAX_DUET_PAIRS if self.in_pairs else MAX_BLOCKS

    def is_decided(self, verdict: Verdict) -> bool:
        """Return whether no more rounds are needed: for the gate if there is one, else at all."""
        if self.experiment.gate is not None:
            return gate(verdict, self.experiment.gate) != "not decidable"
        return verdict.verdict != "not decidable"

    @property
    def is_out_of_time(self) -> bool:
        """Return whether another block as long as the last would end after the limit."""
        spent = time.monotonic() - self.began
        return spent + self.last_block > 60 * self.experiment.max_minutes

    def end(self) -> Stopped:
        verdict = self.verdict()
        ending, detail = self.ending(verdict)
        seconds = time.monotonic() - self.began
        ended = ExperimentEnd(ending=ending, detail=detail, verdict=verdict, seconds=seconds)
        self.directory.write_end(ended)
        return Stopped(ended=ended)

    def ending(self, verdict: Verdict) -> tuple[Ending, str]:
        done = self.blocks_done()
        rounds = counted(self.experiment.block_rounds * done, "round")
        if self.failed:
            return "failed", self.failed
        if self.other_work():
            return "decided", "stopped: the two sides compute different things"
        if done and self.is_decided(verdict):
            what = "decided" if self.experiment.gate is None else "the gate is decided"
            return "decided", f"{what} after {rounds}"
        if self.cancel.is_set():
            resume = f"continue with `ab --resume {self.directory.id}`"
            return "cancelled", f"stopped after {rounds}; {resume}"
        if done >= self.most:
            return "out-of-rounds", f"{rounds}, the maximum, gave no decision"
        limit = f"the limit of {self.experiment.max_minutes:g} minutes"
        another = f"another {self.experiment.block_word}"
        return "out-of-time", f"after {rounds} {another} would have exceeded {limit}"


def _is_lost(ended: PassEnded) -> bool:
    return ended.outcome not in ("finished", "cancelled")


def follow_experiment(
    directory: ExperimentDirectory,
) -> Iterator[RoundFinished | Judged | Stopped]:
    """Yield the rounds so far, then every round as it ends, until the experiment stops.

    If the last event is not Stopped, its process died. Raises DamagedFileError.
    """
    experiment = directory.experiment()
    runs: dict[Side, RunDirectory] = {"A": directory.run("A"), "B": directory.run("B")}
    yielded: set[tuple[str, int, str]] = set()
    blocks, read_at_ns = 0, (-1, -1)
    waits_until = time.monotonic() + BEGIN_SECONDS
    was_live = False
    while True:
        # Read before the rounds: a process that was alive may have measured more since.
        is_live = directory.is_live()
        was_live = was_live or is_live
        ended = directory.ended()
        written_ns = _written_ns(runs["A"]), _written_ns(runs["B"])
        if written_ns != read_at_ns:  # leave the processor to the measurement
            read_at_ns = written_ns
            records = {side: load_record(run) for side, run in runs.items()}
            rows = {
                side: experiment_rounds(record, experiment.id) for side, record in records.items()
            }
            pairs = [(side, row) for side in rows for row in rows[side]]
            for side, row in sorted(pairs, key=lambda pair: pair[1].started_ns):
                # A decision can change a round after its end.
                if (side, row.index, row.disturbed) not in yielded:
                    yielded.add((side, row.index, row.disturbed))
                    yield RoundFinished(side=side, round=row)
            judged = round_blocks(rows["A"], rows["B"]) or duet_pairs(rows["A"], rows["B"])
            if len(judged) > blocks:
                blocks = len(judged)
                verdict = verdict_of(records["A"], records["B"], smallest=experiment.smallest)
                yield Judged(blocks=blocks, verdict=verdict)
        if not is_live and (ended or was_live or time.monotonic() > waits_until):
            if ended:
                yield Stopped(ended=ended)
            return
        time.sleep(_POLL_SECONDS)


def _written_ns(run: RunDirectory) -> int:
    try:
        return run.record_path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main() -> int:
    return work_until_signal(
        lambda path, cancel: run_experiment(
            ExperimentDirectory(path), wait=NO_WAIT not in sys.argv, cancel=cancel
        )
    )


if __name__ == "__main__":
    sys.exit(main())
