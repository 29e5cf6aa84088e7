"""The requests of a pipeline's stage, extended to more micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.requests import STEP, RequestTrace, TraceEntry


class OneF1B(NamedTuple):
    """What a stage runs in the schedule 1F1B.

    Attributes:
        in_flight: Forwards before the first backward.
    """

    in_flight: int
    microbatches: int

    def shortened(self, repeats: int) -> OneF1B:
        """The same with at most that many forwards in flight, and as few pairs after them."""
        in_flight = min(self.in_flight, repeats)
        return OneF1B(in_flight, in_flight + min(self.pairs, repeats))

    @property
    def pairs(self) -> int:
        """Backwards with a forward behind each."""
        return self.microbatches - self.in_flight

    @property
    def kept(self) -> int:
        """Micro-batch whose output a transfer keeps for longer than its backward; -1 for none.

        Of the transfers before the first backward the last is let go with the last pair.
        """
        return self.in_flight - 2 if self.in_flight - 2 < self.pairs else -1

    def more_kept(self, action: int) -> int:
        """How many outputs transfers keep more after an action than before it."""
        if self.kept < 0 or self.actions[action][0] != "backward":
            return 0
        return {self.kept: 1, self.pairs: -1}.get(self.actions[action][1], 0)

    @property
    def actions(self) -> list[tuple[str, int]]:
        """Phase and micro-batch of each action: forwards, pairs, backwards, and the end."""
        ahead, pairs = self.in_flight, range(self.pairs)
        return [
            *(("forward", number) for number in range(ahead)),
            *(one for j in pairs for one in (("backward", j), ("forward", j + ahead))),
            *(("backward", number) for number in range(len(pairs), self.microbatches)),
            ("end", -1),
        ]

    def sources(self, short: OneF1B) -> list[int]:
        """The action of a shorter schedule that each action repeats."""
        few, begin = short.in_flight, short.in_flight + 2 * short.pairs
        pairs = _stretched(self.pairs, short.pairs, short.pairs // 2)
        return [
            *_stretched(self.in_flight, few, few // 2),
            *(few + 2 * pair + part for pair in pairs for part in (0, 1)),
            *(begin + one for one in _stretched(self.in_flight, few, (few - 1) // 2)),
            begin + few,
        ]


def _stretched(count: int, few: int, middle: int) -> list[int]:
    """The numbers below ``few``, of which ``middle`` is repeated so that they are ``count``."""
    numbers = list(range(few))
    return numbers[:middle] + numbers[middle : middle + 1] * (count - few) + numbers[middle:]


_ActionKey = tuple[int, tuple[int, ...]]
"""A request at any number of micro-batches: its action, kind, and how many of it were before."""

NEAR = 2
"""Actions of a phase, the latest included, whose tensors an action of another micro-batch frees."""


def longer_trace(trace: RequestTrace, short: OneF1B, long: OneF1B) -> RequestTrace:
    """Extend the trace of a stage's short schedule to a longer one.

    Raises:
        WorkerFailed: Returns do not repeat with the actions.
    """
    parts = _by_action(trace)
    old, new = short.actions, long.actions
    if len(parts) != 1 + len(old):
        raise _differ()
    labels = dict[int, _ActionKey]()
    for action, part in enumerate(parts):
        counts = Counter[tuple[int, ...]]()
        for entry in part:
            if entry.kind == "request":
                kind = trace.kind_of(entry.number)
                labels[entry.number] = action, (*kind, counts[kind])
                counts[kind] += 1
    kept = _return_early(parts, labels, short)
    sources = long.sources(short)
    times = Counter(sources)
    result, numbers = RequestTrace(), dict[_ActionKey, int]()
    position = {action: number for number, action in enumerate(new, 1)}

    def returned(at: int, source: int, label: _ActionKey) -> Iterator[_ActionKey]:
        """Labels in the long schedule of what an action returns."""
        action, key = label
        if action in (0, source):
            yield (at if action else 0), key
            return
        (phase, number), own, own_now = old[action - 1], old[source - 1][1], new[at - 1][1]
        if label in kept and own != number:
            if long.kept >= 0:
                yield position[phase, long.kept], key
            return
        is_output = phase == "forward" and number == own and key in {one for _, one in kept}
        if is_output and own_now == long.kept:
            return
        others = {old[a - 1][1] for a, one in back[source] if (old[a - 1][0], one) == (phase, key)}
        rest, ahead = {*range(short.microbatches)} - {own}, _count(old, source, phase) - number
        if number == own:  # by the micro-batch that made it
            wanted = [own_now]
        elif len(rest) > 1 and rest <= others:  # of all others at once, as a list of losses
            all_others = [one for one in range(long.microbatches) if one != own_now]
            wanted = all_others if number == min(rest) else []
        elif ahead <= NEAR:  # of one of the last actions of its phase
            wanted = [_count(new, at, phase) - ahead]
        elif times[action - 1] == 1:  # of an action that is not repeated
            wanted = [new[sources.index(action - 1)][1]]
        else:
            raise _differ()
        for one in wanted:
            yield position[phase, one], key

    back = [
        {labels[e.number] for e in part if e.kind == "return" and labels[e.number][0]}
        for part in parts
    ]
    for at, source in enumerate([0, *(one + 1 for one in sources)]):
        for entry in parts[source]:
            if entry.kind == "mark":
                result.mark(entry.name)
            elif entry.kind == "request":
                key = labels[entry.number][1]
                numbers[at, key] = result.request(*trace.kind_of(entry.number))
            else:
                for label in returned(at, source, labels[entry.number]):
                    if label not in numbers:
                        raise _differ()
                    result.give_back(numbers[label])
    return result


def _return_early(
    parts: list[list[TraceEntry]], labels: dict[int, _ActionKey], short: OneF1B
) -> set[_ActionKey]:
    """Have an output that is kept returned by its own backward, too; also return its labels."""
    if short.kept < 0:
        return set()
    position = {action: number for number, action in enumerate(short.actions, 1)}

    def returns(backward: int, forward: int) -> dict[_ActionKey, int]:
        """Where a backward returns what a forward made."""
        rows = enumerate(parts[position["backward", backward]])
        found = {labels[entry.number]: row for row, entry in rows if entry.kind == "return"}
        made = position["forward", forward]
        return {label: row for label, row in found.items() if label[0] == made}

    late = returns(short.pairs, short.kept)
    like = {key: row for (_, key), row in returns(short.kept + 1, short.kept + 1).items()}
    numbers = {label: number for number, label in labels.items()}
    for label in late:
        if label[1] not in like:
            raise _differ()
        own = parts[position["backward", short.kept]]
        own.insert(like[label[1]], TraceEntry("return", numbers[label]))
    return {*late}


def _count(actions: list[tuple[str, int]], end: int, phase: str) -> int:
    return sum(one == phase for one, _ in actions[:end])


def _by_action(trace: RequestTrace) -> list[list[TraceEntry]]:
    """Entries of each action; the first ones are of the build and before the first action."""
    parts, marks, is_step = [list[TraceEntry]()], 0, False
    for entry in trace.entries:
        is_step |= entry.name == STEP
        if is_step and entry.name in ("forward", "backward"):
            marks += 1
            if marks > 1:  # the first begins the schedule
                parts.append([])
        parts[-1].append(entry)
    return parts


def _differ() -> WorkerFailed:
    return WorkerFailed("the micro-batches differ, so their number cannot be extrapolated")
