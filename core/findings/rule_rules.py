"""The type of a rule."""

from __future__ import annotations

from collections.abc import Callable

from sysbench.core.record.record import Finding, Record

Rule = Callable[[Record], Finding | None]
