"""One thing that the doctor looked at."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, what its lack costs, and what to do; the last two empty when ok."""

    name: str
    status: Literal["ok", "warning", "missing"]
    found: str
    costs: str = ""
    remedy: str = ""
