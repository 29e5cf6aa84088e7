"""Clocks of a Perfetto trace: packets name theirs, snapshots relate them."""

from __future__ import annotations

import numpy as np

from sysbench.core.trace.protobuf_fields import Buffer, Integers
from sysbench.core.trace.protobuf_scan import BYTES, VARINT, tag_of

REALTIME, BOOTTIME = 1, 6
OF_SEQUENCE = range(64, 128)
"""Ids of clocks that belong to a sequence of packets."""
ID_BITS = 31
MAX_ID = 2**ID_BITS - 1
MAX_SNAPSHOTS = 2**14
MAX_TIME_NS = 4 * 10**18
"""As for the times in JSON, so that differences fit 63 bits."""
MAX_UNIT_NS = 10**9

CLOCKS, PRIMARY = tag_of(1, BYTES), tag_of(2, VARINT)
ID, TIME, IS_DELTA, UNIT = (tag_of(n, VARINT) for n in (1, 2, 3, 4))

Key = tuple[int, int]
"""Sequence (0 for a clock of all) and id."""


class PerfettoClocks:
    """Relations between clocks.

    Attributes:
        defaults: Clock of the sequences that set one.
        realtime_ahead_ns: Unix time minus the trace's time; 0 if unknown.
    """

    def __init__(self) -> None:
        self.defaults: dict[int, int] = {}
        self.realtime_ahead_ns = 0
        self.main = BOOTTIME
        self._ahead: dict[Key, int] = {}
        self._unit: dict[Key, int] = {}
        self._last: dict[Key, int] = {}
        self._used: set[Key] = set()
        self._snapshots = 0

    def add_snapshot(self, buffer: Buffer, at: int, end: int, sequence: int) -> None:
        """Relate the clocks of a snapshot to the trace's main clock, that of `convert`."""
        readings: dict[Key, int] = {}
        for field in buffer.scan(at, end):
            if field.tag == PRIMARY and not self._snapshots:
                self.main = field.value
            if field.tag != CLOCKS:
                continue
            values = {
                inner.tag: inner.value
                for inner in buffer.scan(field.value, field.value + field.length)
            }
            key = self._key(sequence, values.get(ID, 0))
            unit = values.get(UNIT, 1)
            if not 0 < unit <= MAX_UNIT_NS:
                raise ValueError("the unit of a clock is out of range")
            readings[key] = values.get(TIME, 0) * unit
            self._unit[key] = unit
            if values.get(IS_DELTA):
                self._last[key] = values.get(TIME, 0)
        self._snapshots += 1
        if self._snapshots > MAX_SNAPSHOTS:
            raise ValueError(f"it has more than {MAX_SNAPSHOTS:,} snapshots of its clocks")
        now = readings.get((0, self.main))
        if now is None:
            known = [key for key in readings if key in self._ahead]
            now = readings[known[0]] + self._ahead[known[0]] if known else None
        if now is None:
            now = next(iter(readings.values()), 0)
        for key, reading in readings.items():
            self._ahead[key] = now - reading
        if self._snapshots == 1 and (0, REALTIME) in readings:
            self.realtime_ahead_ns = readings[(0, REALTIME)] - now

    def convert(self, sequence: Integers, clock: Integers, time: Integers) -> Integers:
        """Return nanoseconds of the main clock.

        Raises:
            ValueError: A time is out of range.
        """
        if not len(time):
            return time
        if not clock.any() and not self.defaults:
            if time.any():
                self._used.add((0, self.main))
            return _checked(time)
        result = time.copy()
        ids = np.where(clock == 0, self.main, clock)
        if self.defaults:
            of_default = [self.defaults.get(key, self.main) for key in sequence.tolist()]
            ids = np.where(clock == 0, np.array(of_default, dtype=np.int64), clock)
        belongs = (ids >= OF_SEQUENCE.start) & (ids < OF_SEQUENCE.stop)
        both = np.where(belongs, sequence & MAX_ID, 0) << ID_BITS | ids & MAX_ID
        codes, index = np.unique(both, return_inverse=True)
        for number, code in enumerate(codes.tolist()):
            key = (code >> ID_BITS, code & MAX_ID)
            chosen = np.flatnonzero(index == number)
            values = time[chosen]
            if key in self._last:
                values = self._last[key] + np.cumsum(_checked(values))
                self._last[key] = int(values[-1])
            unit, ahead = self._unit.get(key, 1), self._ahead.get(key, 0)
            if float(np.abs(values).max()) * unit + abs(ahead) > MAX_TIME_NS * 2:
                raise ValueError("a time is out of range")
            result[chosen] = values * unit + ahead
            if time[chosen].any():
                self._used.add(key)
        return _checked(result)

    def check(self) -> None:
        """
        Raises:
            ValueError: Events have times of clocks that no snapshot relates.
        """
        unrelated = self._used - set(self._ahead) - {(0, self.main)}
        if unrelated and len(self._used) > 1:
            raise ValueError("no snapshot relates the clocks of its events")

    def _key(self, sequence: int, clock: int) -> Key:
        return (sequence & MAX_ID if clock in OF_SEQUENCE else 0, clock & MAX_ID)


def _checked(time: Integers) -> Integers:
    if int(time.min(initial=0)) < -MAX_TIME_NS or int(time.max(initial=0)) > MAX_TIME_NS:
        raise ValueError("a time is out of range")
    return time
