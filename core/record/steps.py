"""Part of the record's kernel table: the steps that a trace or an export of others marks."""

from __future__ import annotations

import msgspec


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step, or what lies outside of all steps (``number`` is null then).

    ``host_start_ns`` (since the file's first event) and ``host_ns`` are of the marker itself, on
    the host. ``ns`` is the step's part of the span, from ``start_ns``: ``busy_ns``, the causes of
    ``idle`` and ``unattributed_ns`` sum to it. ``communication_ns`` is the part of ``busy_ns`` in
    which only communication ran, or copies beside it: the exposed one. ``kernels`` counts the work
    that began in it, on the host operators.

    ``kind`` is ``prefill``, ``decode`` or ``mixed`` where the marker says so, else empty, and
    ``tokens`` and ``requests`` are the marker's, null where it has none. ``is_odd`` marks a step
    farther from the median of its kind than `core.analysis.kernels.layers.odd_ones` allows.
    """

    number: int | None
    name: str
    kind: str = ""
    tokens: int | None = None
    requests: int | None = None
    host_start_ns: int | None = None
    host_ns: int | None = None
    start_ns: int = 0
    ns: int = 0
    busy_ns: int = 0
    communication_ns: int = 0
    idle: dict[str, int] = {}
    unattributed_ns: int = 0
    kernels: int = 0
    is_odd: bool = False


class MarkedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a file; ``rows`` and ``outside`` add up to ``span_ns``, column by column.

    With ``clock`` ``device`` a step lasts from the first to the end of the last work that was
    launched while its marker was open, since a device works behind its host, and at most to the
    next step; with ``host``, in a file without device work, a step is its marker. ``left_out``
    counts the markers that begin inside another one. ``chosen`` are the first and last number of
    the steps that all other tables are of; null where they are of the whole file.
    """

    family: str
    clock: str
    span_ns: int
    rows: list[StepRow]
    outside: StepRow
    left_out: int = 0
    chosen: tuple[int, int] | None = None

    @property
    def chosen_words(self) -> str:
        """``step 3``, ``steps 2–5``; empty where none are chosen."""
        if self.chosen is None:
            return ""
        first, last = self.chosen
        return f"step {first}" if first == last else f"steps {first}–{last}"
