"""Parts of the kernel table that a file of others has: marked steps, collectives, ranges."""

from __future__ import annotations

import msgspec

from sysbench.core.record.nsys import KernelSummary


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step, or what lies outside of all steps (``number`` is null then).

    ``host_start_ns`` (since the file's first event) and ``host_ns`` are of the marker itself, on
    the host. ``ns`` is the step's part of the span, from ``start_ns``: ``busy_ns``, the causes of
    ``idle`` and ``unattributed_ns`` sum to it. ``communication_ns`` is the part of ``busy_ns`` in
    which only communication ran, or copies beside it: the exposed one. ``kernels`` counts the work
    that began in it, on the host operators.

    ``kind`` is ``prefill``, ``decode`` or ``mixed`` where the marker says so, else empty, and
    ``tokens`` and ``requests`` are the marker's, null where it has none. ``is_odd`` marks a step
    farther from the median of its kind than `core.trace.module_tree.find_outliers` allows.
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


class TracedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one collective of a file, by kind, bytes and group; times are sums over the
    window of the tables.

    ``bytes`` are of one call as nccl-tests counts them: of all ranks' parts where these differ.
    ``exposed_ns`` is the part in which nothing computed. Bandwidths are in GB/s, by the mean time
    and, ``best_bus_gbs``, by the shortest; the time has the waiting for other ranks in it. What
    the file does not say is null.
    """

    kind: str
    name: str
    calls: int
    total_ns: int
    exposed_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    bytes: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group: str | None = None
    ranks: str | None = None
    algorithm_gbs: float | None = None
    bus_gbs: float | None = None
    best_bus_gbs: float | None = None


class HostRange(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one range of the host, by its name without what numbers its calls.

    ``own_ns`` is the time in which the work counts that was launched inside, and in no range
    within; ``total_ns`` has that of the ranges within too. Both are parts of the table's busy
    time, in which an instant counts once: the ``own_ns`` of all rows and what was launched in no
    range add up to it. ``meanwhile_ns`` is the same time of what any thread launched while the
    range was open, as the engine of autograd launches backward from threads of its own.
    ``launched`` counts the kernels, copies and fills of ``total_ns``, without a device the
    operators. ``host_ns`` is for how long any call was open,
    in each thread by itself; ``late_ns`` for how long the device stood still meanwhile because the
    host had not launched yet.
    """

    name: str
    calls: int
    host_ns: int
    launched: int
    own_ns: int
    total_ns: int
    meanwhile_ns: int
    late_ns: int = 0


class HostSide(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of a foreign file did, over the window of the tables, not per step.

    ``annotations`` are ranges that programs opened (``record_function``, NVTX): all of them.
    ``functions`` are Python functions outside of torch that launched work, by file and first line
    of the function, where the trace has stacks. ``elsewhere_ns`` and ``no_function_ns`` are the
    time of work in none of them; rows beyond those kept are summed to ``more_ns`` and
    ``more_functions_ns``. ``projected`` says that the annotations are the device's own projection
    of them, as the file has no host. ``calls`` are those of CUDA's or HIP's runtime and driver.
    """

    annotations: list[HostRange] = []
    elsewhere_ns: int = 0
    more_ns: int = 0
    projected: bool = False
    functions: list[HostRange] = []
    no_function_ns: int = 0
    more_functions_ns: int = 0
    calls: list[KernelSummary] = []
