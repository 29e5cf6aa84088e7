"""Table of known GPUs, for predictions for a GPU that is not in this machine.

Imports no torch and queries no device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from sysbench.core.errors import SpecError
from sysbench.core.formatting import BINARY_UNITS, did_you_mean
from sysbench.core.machine.peaks import VENDOR, gpus

FAMILY = re.compile(r"^(GeForce|Tesla)\s+", re.IGNORECASE)
SOLD_AS = 1.08
"""Tolerance for the decimal gigabytes in which GPUs are sold: 80 GB may be up to 85.9e9 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """A GPU of the table.

    Attributes:
        key: Short name, such as ``h100``.
        memory_bytes: All of its memory, as NVML counts it.
        driver_bytes: The part that CUDA cannot use; None if it is not published.
    """

    key: str
    name: str
    capability: str
    memory_bytes: int
    driver_bytes: int | None
    source: str


@cache
def known_cards() -> dict[str, KnownCard]:
    """Return the GPUs by key, those with the most memory first."""
    mib = BINARY_UNITS["MiB"]
    cards = [
        KnownCard(
            key=key,
            name=card.name,
            capability=gpu.capability,
            memory_bytes=card.nvml_mib * mib,
            driver_bytes=None if card.cuda_mib is None else (card.nvml_mib - card.cuda_mib) * mib,
            source=card.source,
        )
        for gpu in gpus().values()
        for key, card in gpu.cards.items()
    ]
    return {card.key: card for card in sorted(cards, key=lambda card: -card.memory_bytes)}


def find_card(text: str) -> KnownCard:
    """Find a GPU by its key or by the driver's name.

    Case, spaces, hyphens and the vendor do not matter: ``RTX 4090`` is ``rtx4090``.

    Raises:
        SpecError: Unknown name; the message has suggestions and all known names.
    """
    cards, wanted = known_cards(), _plain(text)
    for card in cards.values():
        if wanted in (_plain(card.key), _plain(card.name)):
            return card
    raise SpecError("--card", text, f"{_hint(wanted)}known: {', '.join(cards)}")


def sold_as(capacity_bytes: int) -> list[KnownCard]:
    """Return the GPUs that are sold with this number of decimal bytes, such as 80e9."""
    return [
        card
        for card in known_cards().values()
        if capacity_bytes <= card.memory_bytes <= SOLD_AS * capacity_bytes
    ]


def _hint(wanted: str) -> str:
    keys = {_plain(key): key for key in known_cards()}
    matches = [key for plain, key in keys.items() if wanted and plain.startswith(wanted)]
    if matches:
        return f"did you mean {' or '.join(matches)}? "
    rows = {_plain(name) for key, gpu in gpus().items() for name in (key, *gpu.names)}
    if wanted and any(row.startswith(wanted) for row in rows):
        return "the table has no GPU with that memory: set --capacity; "
    return did_you_mean(wanted, known_cards())


def _plain(text: str) -> str:
    bare = FAMILY.sub("", VENDOR.sub("", text.strip()))
    return re.sub(r"[\s_-]+", "", bare).casefold()
