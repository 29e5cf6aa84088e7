"""A figure of a study: lines over a numeric axis, drawn as SVG or in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

LOG_FROM = 8.0
"""An axis whose ends are so many times apart is logarithmic: three doublings."""
_STEPS = (1, 2, 5)


class Series(msgspec.Struct, frozen=True):
    """One line. Points ascend along the axis; y is None where there is no value: a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def pieces(self) -> list[list[tuple[float, float]]]:
        """Neighbours that all have values; a gap is never bridged."""
        found: list[list[tuple[float, float]]] = [[]]
        for x, y in self.points:
            if y is None:
                found.append([])
            else:
                found[-1].append((x, y))
        return [piece for piece in found if piece]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one quantity over one axis.

    Attributes:
        title: What is drawn.
        axis: Name of the axis; its values are the points' x.
        column: Name of the quantity as in a table, its unit at the end: ``forward_ms``.
    """

    title: str
    axis: str
    column: str
    series: tuple[Series, ...]

    @property
    def places(self) -> list[float]:
        """All values of the axis, ascending."""
        return sorted({x for one in self.series for x, _ in one.points})

    @property
    def across(self) -> Scale:
        """The scale of the axis."""
        return Scale.of(self.places)

    @property
    def up(self) -> Scale:
        """The scale of the quantity; it has zero where it is linear."""
        return Scale.of((y for one in self.series for _, y in one.known), with_zero=True)


class Scale(msgspec.Struct, frozen=True):
    """An axis from ``low`` to ``high``, ``low`` less."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, values: Iterable[float], *, with_zero: bool = False) -> Scale:
        """A scale that holds all of these values, logarithmic where they are far apart."""
        known = list(values)
        low, high = min(known), max(known)
        if low > 0 and high >= LOG_FROM * low:
            return cls(low, high, is_log=True)
        if with_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.0 if low < high else abs(high) / 2 or 1.0
        return cls(low - room, high + room, is_log=False)

    def part(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values within it, about so many."""
        found = self._log_ticks() if self.is_log else []
        if len(found) < 2:
            found = self._even_ticks(most)
        return found[:: math.ceil(len(found) / most)]

    def _even_ticks(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * n for n in (*_STEPS, 10) if power * n >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [n * step for n in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        every = [n * 10.0**power for power in powers for n in _STEPS]
        inside = [value for value in every if self.low <= value <= self.high]
        decades = [value for value in inside if math.log10(value).is_integer()]
        return decades if len(decades) > 3 else inside
