"""The type of a rule: a function from a record to one finding or none."""

from __future__ import annotations

from collections.abc import Callable

from sysbench.core.record.record import Finding, Record

Rule = Callable[[Record], Finding | None]
