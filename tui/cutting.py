"""Texts cut to a width of cells, so that those that differ look different."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size


def cut_off(text: str, width: int) -> str:
    """A text of at most so many cells, its end given up."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def told_apart(
    texts: Sequence[str], width: int, cut: Callable[[str, int], str] = cut_off
) -> list[str]:
    """Texts cut to a width so that those that differ look different, where there is room.

    Names of C++ templates are alike for hundreds of characters at both ends: those that would look
    the same are cut around the place where each differs from the others.

    Args:
        texts: The cells of a column.
        width: Cells for each, at least 3.
        cut: How a text is cut that looks like no other.
    """
    short = {text: cut(text, width) for text in texts}
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for text, seen in short.items():
        alike[seen].append(text)
    for group in alike.values():
        if len(group) > 1:
            short |= _cut_where_they_differ(sorted(group), width)
    return [short[text] for text in texts]


def _cut_where_they_differ(group: Sequence[str], width: int) -> dict[str, str]:
    """Of texts in alphabetic order, so that the most alike are neighbours."""
    alike = [_same_begin(*pair) for pair in itertools.pairwise(group)]
    head = (width - 1) // 2
    result = {}
    for text, before, after in zip(group, [0, *alike], [*alike, 0], strict=True):
        # The first character that no neighbour has stands behind the first dots.
        differs = max(before, after, head + 2)
        result[text] = cut_off(f"{set_cell_size(text, head)}…{text[differs - 2 :]}", width)
    return result


def _same_begin(a: str, b: str) -> int:
    """Number of characters with which both begin."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in same)
