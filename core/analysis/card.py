"""How the driver's figure for a device, or the system's for a process, adds up."""

from __future__ import annotations

import msgspec

from ..record import LedgerRow


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was in use, in bytes, when the steady step had ended; None where nobody says.

    Attributes:
        used: By everything on the device; on the CPU the peak resident set of the process.
        reserved: By torch's caching allocator; None on the CPU, which has none.
        process: By this process on the device, its context and libraries included.
        others: By other processes on the device.
    """

    used: int | None = None
    reserved: int | None = None
    process: int | None = None
    others: int | None = None


def card_rows(allocated: int, reading: CardReading) -> list[LedgerRow]:
    """Rows that sum to ``reading.used``; none when that is unknown.

    Args:
        allocated: Bytes allocated at the peak.
    """
    if reading.used is None:
        return []
    rows = [LedgerRow("allocated at the peak", allocated)]
    if reading.reserved is None:
        rest = LedgerRow("interpreter, libraries, recording", reading.used - allocated)
        return [*rows, rest]
    rows.append(LedgerRow("allocator slack", reading.reserved - allocated))
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
