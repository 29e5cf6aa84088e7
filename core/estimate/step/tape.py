"""Live bytes by kind while a step is played through, and the worst moment of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TEMPORARIES, ACTIVATIONS = "temporaries", "activations"


@dataclass(frozen=True, slots=True)
class Moment:
    """Live bytes at one moment, by kind, and where in the step it is."""

    phase: str
    place: str
    total: int
    live: Counter[str]


class Tape:
    """Tensors come and go by name; what the graph saves outlives its name.

    Args:
        resident: Bytes by kind that are live before the step.
        graph: Whether a graph is recorded; without one `save` does nothing.

    Attributes:
        total: Live bytes now, of all kinds.
        keeps: Whether the graph keeps what it saves; where it will be computed again, not.
        kept_as: What temporaries become when the graph saves them.
        phase, place: Where the step is, for the moments that follow.
        peaks: The worst moment so far of each phase.
    """

    def __init__(self, resident: Mapping[str, int], *, graph: bool) -> None:
        self.live = Counter(resident)
        self.total = sum(resident.values())
        self.graph = graph
        self.keeps = True
        self.kept_as = ACTIVATIONS
        self.phase = self.place = ""
        self.peaks: dict[str, Moment] = {}
        self._held: dict[str, tuple[str, int]] = {}
        self._saved: dict[str, tuple[str, int]] = {}

    def enter(self, phase: str, place: str) -> None:
        """Begin a phase: what is live now is its first moment."""
        self.phase, self.place = phase, place
        self._note(0, TEMPORARIES)

    def add(self, kind: str, count: int) -> None:
        """Bytes that are not followed by name; negative when they go."""
        self.live[kind] += count
        self.total += count
        if count > 0:
            self._note(0, kind)

    def new(self, name: str, count: int, kind: str = TEMPORARIES) -> None:
        """A tensor that the program holds."""
        self._held[name] = kind, count
        self.add(kind, count)

    def rename(self, name: str, count: int, kind: str) -> None:
        """A name for a tensor that is counted already."""
        self._held[name] = kind, count

    def save(self, *names: str) -> None:
        """The graph keeps these for backward."""
        if not (self.graph and self.keeps):
            return
        for name in names:
            kind, count = self._held.pop(name)
            if kind == TEMPORARIES:
                kind = self.kept_as
                self.live[TEMPORARIES] -= count
                self.live[kind] += count
            self._saved[name] = kind, count

    def free(self, *names: str) -> None:
        """The program drops these; what the graph has saved stays."""
        for name in names:
            kind, count = self._held.pop(name, (TEMPORARIES, 0))
            self.add(kind, -count)

    def release(self, *names: str) -> None:
        """The graph drops these, the backward of their operation being done."""
        for name in names:
            kind, count = self._saved[name]
            self.add(kind, -count)

    def spike(self, count: int, kind: str = TEMPORARIES) -> None:
        """That many bytes more for an instant."""
        self._note(count, kind)

    def repeat(self, play: Callable[[int], None], indices: range) -> None:
        """Play a part for every index.

        Each time leaves the same bytes more or less, so live bytes are affine in the index
        at every place of the part, and highest in the first or in the last: only these two
        are played.
        """
        before = Counter(self.live)
        play(indices[0])
        if len(indices) == 1:
            return
        for kind, count in self.live.items():
            self.live[kind] += (count - before[kind]) * (len(indices) - 2)
        self.total = sum(self.live.values())
        play(indices[-1])

    def _note(self, count: int, kind: str) -> None:
        total = self.total + count
        if self.phase not in self.peaks or total > self.peaks[self.phase].total:
            live = self.live.copy()
            live[kind] += count
            self.peaks[self.phase] = Moment(self.phase, self.place, total, live)
