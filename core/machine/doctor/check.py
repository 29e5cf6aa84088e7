"""A check of the doctor."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, the cost of its defect and the remedy; the last two are empty when ok."""

    name: str
    status: Literal["ok", "warning", "missing"]
    found: str
    costs: str = ""
    remedy: str = ""
