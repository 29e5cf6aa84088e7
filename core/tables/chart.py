"""A figure of a study: lines over a numeric axis, drawn as SVG or in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from sysbench.core.formatting import format_bytes, format_count

LOG_FROM = 8.0
"""Ratio of an axis's ends from which it is logarithmic: three doublings."""
DIGITS = 4
COUNT_FROM = 1e6
"""Places on the axis from this value on are written as counts: ``969 M`` parameters."""
_STEPS = (1, 2, 5)

Point = tuple[float, float]


class Series(msgspec.Struct, frozen=True):
    """One line. Points ascend along the axis; y is None where there is no value: a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def known(self) -> list[Point]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def pieces(self) -> list[list[Point]]:
        """Neighbours that all have values; a gap is never bridged."""
        pieces: list[list[Point]] = [[]]
        for x, y in self.points:
            if y is None:
                pieces.append([])
            else:
                pieces[-1].append((x, y))
        return [piece for piece in pieces if piece]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one quantity over one axis.

    Attributes:
        name: Of the quantity, with its unit.
        title: Caption of the figure.
        axis: Name of the axis; its values are the points' x.
        unit: Of the values: ``ms``, ``GiB``, ``%``; ``B`` is written in the unit that suits.
    """

    name: str
    title: str
    axis: str
    unit: str
    series: tuple[Series, ...]

    @property
    def drawn(self) -> list[Series]:
        """The series that have a value."""
        return [series for series in self.series if series.known]

    @property
    def places(self) -> list[float]:
        """All values of the axis, ascending."""
        return sorted({x for series in self.series for x, _ in series.points})

    @property
    def across(self) -> Scale:
        """The scale of the axis."""
        return Scale.of(self.places)

    @property
    def up(self) -> Scale:
        """The scale of the quantity; it has zero where it is linear."""
        values = (y for series in self.series for _, y in series.known)
        return Scale.of(values, with_zero=True, is_binary=self.unit == "B")

    def mark(self, place: float) -> str:
        """A value of the axis."""
        return f"{place:g}" if abs(place) < COUNT_FROM else format_count(place).strip()

    def tick(self, value: float) -> str:
        """A round value of the quantity."""
        return format_bytes(value) if self.unit == "B" else f"{value:,.6g}"

    def words(self, value: float | None) -> str:
        """A value of the quantity with its unit; a dash where there is none."""
        return "–" if value is None else with_unit(value, self.unit)


def with_unit(value: float, unit: str) -> str:
    """A number with four digits and its unit; ``B`` becomes the unit that suits."""
    return digits(value, unit) if unit == "B" else f"{digits(value, unit)} {unit}".rstrip()


def digits(value: float, unit: str) -> str:
    """The same without the unit. Byte values carry their own unit."""
    if unit == "B":
        return format_bytes(value)
    integer_digits = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{max(0, DIGITS - integer_digits)}f}"


class Scale(msgspec.Struct, frozen=True):
    """An axis from ``low`` to ``high``, ``low`` less. A binary one has powers of two as ticks."""

    low: float
    high: float
    is_log: bool
    is_binary: bool = False

    @classmethod
    def of(
        cls, values: Iterable[float], *, with_zero: bool = False, is_binary: bool = False
    ) -> Scale:
        """A scale that holds all of these values, logarithmic where they are far apart."""
        numbers = list(values)
        low, high = min(numbers), max(numbers)
        if low > 0 and high >= LOG_FROM * low:
            return cls(low, high, is_log=True, is_binary=is_binary)
        if with_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.0 if low < high else abs(high) / 2 or 1.0
        return cls(low - room, high + room, is_log=False, is_binary=is_binary)

    def part(self, value: float) -> float:
        """Position of a value: 0 at the low end, 1 at the high."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, limit: int) -> list[float]:
        """Round values within the axis, at least one and at most ``limit``, which is 2 or more."""
        ticks = self._log_ticks() if self.is_log else []
        if len(ticks) < 2:
            # A step may be 2.5 times the part that it rounds, and then two parts hold none of it.
            ticks = self._even_ticks(limit) or self._even_ticks(2 * limit)
        return ticks[:: math.ceil(len(ticks) / limit)]

    def _even_ticks(self, limit: int) -> list[float]:
        rough = (self.high - self.low) / limit
        if self.is_binary:
            step = 2.0 ** math.ceil(math.log2(rough))
        else:
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * n for n in (*_STEPS, 10) if power * n >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [n * step for n in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        base, steps = (2.0, (1,)) if self.is_binary else (10.0, _STEPS)
        first, last = (math.log(value, base) for value in (self.low, self.high))
        powers = [base**n for n in range(math.floor(first), math.ceil(last) + 1)]
        inside = [n * power for power in powers for n in steps if self.low <= n * power]
        inside_powers = [value for value in powers if self.low <= value <= self.high]
        return (
            inside_powers
            if len(inside_powers) > 3
            else [value for value in inside if value <= self.high]
        )
