"""What a rule is: a record in, at most one finding out."""

from __future__ import annotations

from collections.abc import Callable

from ...record.record import Finding, Record

Rule = Callable[[Record], Finding | None]
