"""Count live bytes by kind while a step is replayed, and keep the peak of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TEMPORARIES, ACTIVATIONS = "temporaries", "activations"


@dataclass(frozen=True, slots=True)
class TapeMoment:
    """Live bytes at one moment, by kind, with its phase and place."""

    phase: str
    place: str
    total: int
    live: Counter[str]


class Tape:
    """Live tensors by name; a tensor that the graph saves outlives its name.

    A new tensor under a name in use replaces the entry and not the bytes: free the old one first.

    Attributes:
        keeps: Whether the graph keeps saved tensors; false in a segment that is recomputed.
        kept_as: Kind that temporaries get when the graph saves them.
        peaks: The peak so far of each phase.
    """

    def __init__(self, resident: Mapping[str, int], *, graph: bool) -> None:
        self.live = Counter(resident)
        self.total = sum(resident.values())
        self.graph = graph
        self.keeps = True
        self.kept_as = ACTIVATIONS
        self.phase = self.place = ""
        self.peaks: dict[str, TapeMoment] = {}
        self._named: dict[str, tuple[str, int]] = {}
        self._saved: dict[str, tuple[str, int]] = {}

    def enter(self, phase: str, place: str) -> None:
        """Begin a phase; the live bytes now are its first moment."""
        self.phase, self.place = phase, place
        self._note(0, TEMPORARIES)

    def add(self, kind: str, count: int) -> None:
        """Add bytes without a name; negative when they are freed."""
        self.live[kind] += count
        self.total += count
        if count > 0:
            self._note(0, kind)

    def new(self, name: str, count: int, kind: str = TEMPORARIES) -> None:
        """Allocate a tensor that the program holds under a name."""
        self._named[name] = kind, count
        self.add(kind, count)

    def rename(self, name: str, count: int, kind: str) -> None:
        self._named[name] = kind, count

    def save(self, *names: str) -> None:
        """Let the graph keep tensors for backward, until `release`."""
        if not (self.graph and self.keeps):
            return
        for name in names:
            # Popped: a later `free` of the name changes nothing, the graph holds the tensor.
            kind, count = self._named.pop(name)
            if kind == TEMPORARIES:
                kind = self.kept_as
                self.live[TEMPORARIES] -= count
                self.live[kind] += count
            self._saved[name] = kind, count

    def free(self, *names: str) -> None:
        """Drop names; unknown names and tensors saved by the graph are unaffected."""
        for name in names:
            kind, count = self._named.pop(name, (TEMPORARIES, 0))
            self.add(kind, -count)

    def release(self, *names: str) -> None:
        """Drop saved tensors, at the end of their operation's backward."""
        for name in names:
            # Not popped: `repeat` releases the same names once for every block.
            kind, count = self._saved[name]
            self.add(kind, -count)

    def spike(self, count: int, kind: str = TEMPORARIES) -> None:
        self._note(count, kind)

    def repeat(self, part: Callable[[int], None], indices: range) -> None:
        """Replay a part for every index.

        Each repetition adds or frees the same bytes, so live bytes are affine in the index at every
        place of the part and peak in the first or the last: only these two are replayed.
        """
        before = Counter(self.live)
        part(indices[0])
        if len(indices) == 1:
            return
        # The first is replayed and the last will be: extrapolate the len - 2 between them.
        for kind, count in self.live.items():
            self.live[kind] += (count - before[kind]) * (len(indices) - 2)
        self.total = sum(self.live.values())
        part(indices[-1])

    def _note(self, count: int, kind: str) -> None:
        total = self.total + count
        if self.phase not in self.peaks or total > self.peaks[self.phase].total:
            live = self.live.copy()
            live[kind] += count
            self.peaks[self.phase] = TapeMoment(self.phase, self.place, total, live)
