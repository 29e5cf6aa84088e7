"""Fit the columns of a table to a width: which have room, and how wide each is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sysbench.core.tables.table import Table

GAP = 2
"""Cells between two columns."""
LEAST_TEXT = 12
"""Cells that a truncated text keeps."""
SHORT_TEXT = 24
"""Most cells of a text that is never truncated."""
FLEXIBLE_SHARE = 0.28
"""Share of the width that the flexible column keeps."""
EXTRA, WHOLE = 10, 60
"""Columns with this priority and above go before the flexible one has fewer cells than this."""


def fit_columns(
    table: Table,
    widths: Mapping[str, int],
    width: int,
    *,
    numbers: Collection[str],
    flexible: str = "",
    priorities: Mapping[str, float] | None = None,
    drop: Sequence[str] = (),
    flexible_share: float = FLEXIBLE_SHARE,
) -> dict[str, int]:
    """Cells of each column that has room, in the order of ``widths``.

    Columns go until the others have their fewest cells, then the widest texts are narrowed. If the
    columns that always stay are wider, they are returned as wide as they are.

    Args:
        table: Its priorities decide which columns go.
        widths: Cells of the widest text of each column.
        width: Cells of a row, with a gap for each column.
        numbers: Columns of numbers, which are never truncated.
        flexible: The column that stays and takes the room that the others leave.
        priorities: These in place of the table's.
        drop: Columns that go before any other, the first one first, and before any text is
            narrowed.
        flexible_share: Share of the width that the flexible column keeps.
    """
    least = {
        name: size if name in numbers or size <= SHORT_TEXT else min(size, LEAST_TEXT)
        for name, size in widths.items()
    }
    if flexible in widths:
        least[flexible] = min(widths[flexible], max(LEAST_TEXT, int(width * flexible_share)))
    given = {name: table.look(name).priority for name in widths}
    ranks = {**(given if priorities is None else priorities), flexible: 0}
    whole = max(0, min(widths.get(flexible, 0), WHOLE) - least.get(flexible, 0))
    for name in drop:
        if _taken(widths[each] for each in least) > width:
            least.pop(name, None)
    while least:
        last = max(least, key=lambda name: ranks.get(name, 0))
        rank = ranks.get(last, 0)
        if _taken(least.values()) + (whole if rank >= EXTRA else 0) <= width:
            break
        if not rank:
            return {name: widths[name] for name in least}
        del least[last]
    fitted = {name: widths[name] for name in least}
    for _ in range(_taken(fitted.values()) - width):
        longer = (name for name in fitted if fitted[name] > least[name])
        fitted[max(longer, key=fitted.__getitem__)] -= 1
    return fitted


def _taken(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths)
