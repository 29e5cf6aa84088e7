"""How the driver's figure for a device, or the system's for a process, adds up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...record.memory import Pool
from ...record.record import LedgerRow


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was in use, in bytes, when a step had ended; None where nobody says.

    Attributes:
        used: By everything on the device; on the CPU the resident set of the process.
        allocated: Blocks that torch's caching allocator had handed out, at the step's peak
            where the column is one.
        reserved: By torch's caching allocator; None on the CPU, which has none.
        process: By this process on the device, its context and libraries included.
        others: By other processes on the device.
    """

    used: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    process: int | None = None
    others: int | None = None

    def with_reserved(self, reserved: int) -> CardReading:
        """The same device at a time when the allocator held that much of it."""
        if self.reserved is None:
            return self
        more = reserved - self.reserved
        return msgspec.structs.replace(
            self,
            used=None if self.used is None else self.used + more,
            reserved=reserved,
            process=None if self.process is None else self.process + more,
        )


def card_rows(allocated: int, reading: CardReading, pools: Sequence[Pool] = ()) -> list[LedgerRow]:
    """Rows that sum to ``reading.used``; none when that is unknown.

    Args:
        allocated: Bytes that the ledger of the same instant sums to.
        pools: The allocator's pools then: its slack is told by pool.
    """
    if reading.used is None:
        return []
    rows = [LedgerRow("allocated", allocated)]
    if reading.reserved is None:
        rest = LedgerRow("interpreter, libraries, recording", reading.used - allocated)
        return [*rows, rest]
    rows += _slack(reading.reserved - allocated, pools)
    outside = reading.used - reading.reserved
    if reading.process is None or reading.others is None:
        return [*rows, LedgerRow("outside the allocator", outside)]
    own = reading.process - reading.reserved
    return [
        *rows,
        LedgerRow("context and libraries", own),
        LedgerRow("other processes", reading.others),
        LedgerRow("residual", outside - own - reading.others),
    ]


def _slack(slack: int, pools: Sequence[Pool]) -> list[LedgerRow]:
    """What the allocator holds and has not handed out.

    Blocks larger than asked for count as handed out, and the pools do not know of them. Only
    large pools have such blocks, so that the largest one takes the difference.
    """
    if not pools:
        return [LedgerRow("allocator slack", slack)]
    free = {pool.name: pool.free_bytes for pool in pools}
    free[max(pools, key=lambda pool: pool.free_bytes).name] += slack - sum(free.values())
    return [LedgerRow(f"slack, {name}", count) for name, count in free.items()]
