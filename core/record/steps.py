"""Parts of the kernel table of an imported file: marked steps, collectives, ranges."""

from __future__ import annotations

import msgspec

from sysbench.core.record.nsys import KernelSummary


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step, or the time outside of all steps (``number`` is null then).

    ``host_start_ns`` (since the file's first event) and ``host_ns`` are of the marker itself, on
    the host. ``ns`` is the step's part of the span, from ``start_ns``: ``busy_ns``, the causes of
    ``idle`` and ``unattributed_ns`` sum to it. ``communication_ns`` is the exposed part of
    ``busy_ns``: only communication and copies ran. ``kernels`` counts the work that began in it, on
    the host operators, and ``launched`` the work launched while its marker was open. ``loading_ns``
    is the part of ``ns`` in which the loop, or an idle device, waits for torch's data loader.

    ``kind`` is ``prefill``, ``decode`` or ``mixed`` if the marker contains it, else empty, and
    ``tokens`` and ``requests`` are the marker's, null if it has none. ``is_odd`` marks an outlier
    among the steps of its kind.
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
    launched: int = 0
    loading_ns: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing ran in it, nor was launched."""
        return not self.kernels and not self.launched


class MarkedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a file; ``rows`` and ``outside`` add up to ``span_ns``, column by column.

    With ``clock`` ``device`` a step lasts from the begin of its marker to the end of the marker or
    of the last work launched while it was open, since a device lags its host; it begins when the
    step before has ended. With ``host``, in a file without device work, a step is its marker. The
    span begins and ends with the first and last of steps and work. ``left_out`` counts the
    markers that begin inside another one. ``chosen`` are the first and last number of the steps
    that all other tables cover; null if they cover the whole file.
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
        """``step 3``, ``steps 2–5``; empty if none are chosen."""
        if self.chosen is None:
            return ""
        first, last = self.chosen
        return f"step {first}" if first == last else f"steps {first}–{last}"


class TracedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one collective by kind, bytes and group; times are sums over the tables' window.

    ``bytes`` are of one call as nccl-tests counts them: of all ranks' parts if these differ.
    ``exposed_ns`` is the part in which nothing computed. Bandwidths are in GB/s, by the mean time
    and, ``best_bus_gbs``, by the shortest; the time includes waiting for other ranks. Null if the
    file does not contain it. ``purpose`` is the name that the program gave the group, such as
    ``mesh_tp``, and ``group`` torch's name for it.
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
    purpose: str | None = None


class TracedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of one direction and kind of host memory, over the tables' window.

    ``memory`` is ``pageable``, ``pinned`` or ``unified`` (pages that the driver moved), empty if it
    is unknown or no host takes part.
    ``exposed_ns`` is the part in which nothing computed or communicated. ``bytes`` and ``gbs``
    (GB/s, over the summed time) are null if the file does not contain them.
    """

    direction: str
    memory: str
    calls: int
    total_ns: int
    exposed_ns: int
    bytes: int | None = None
    gbs: float | None = None


class HostRange(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one range of the host, by its name without call numbers.

    ``own_ns`` is the time of work launched inside, but in no nested range; ``total_ns`` includes
    nested ranges. Both are parts of the table's busy time, in which an instant counts once: the
    ``own_ns`` of all rows and the time of work outside all ranges add up to it. ``meanwhile_ns`` is
    the same time of what any thread launched while the range was open, since autograd launches
    backward from its own threads. ``launched`` counts the kernels, copies and fills of
    ``total_ns``, without a device the operators. ``host_ns`` is the time that any call was open,
    per thread; ``late_ns`` the part of it in which the device was idle because the host had not
    launched yet, ``own_late_ns`` the part of that in no nested range.
    """

    name: str
    calls: int
    host_ns: int
    launched: int
    own_ns: int
    total_ns: int
    meanwhile_ns: int
    late_ns: int = 0
    own_late_ns: int = 0


class TracedOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an operator with equal tensors, from one Python function of the program.

    ``own_ns`` is the exclusive time of the work that they launched, over the window of the tables;
    ``types`` are those of the tensors of ``shapes``. ``function`` is as in `HostSide.functions`,
    empty without stacks; ``in_backward`` whether autograd called it.
    """

    name: str
    shapes: list[list[int]]
    types: list[str]
    function: str
    calls: int
    own_ns: int
    in_backward: bool = False


class HostSide(msgspec.Struct, frozen=True, kw_only=True):
    """Host activity in an imported file, over the window of the tables, not per step.

    ``annotations`` are all ranges that programs opened (``record_function``, NVTX). ``functions``
    are Python functions outside of torch that launched work, by file and first line of the
    function, if the trace has stacks. ``elsewhere_ns`` and ``no_function_ns`` are the time of work
    in none of them; rows beyond the limit are summed to ``more_ns`` and ``more_functions_ns``.
    ``projected`` means that the annotations are the device's own projection of them, as the file
    has no host. ``calls`` are those of CUDA's or HIP's runtime and driver. ``operators`` are those
    with recorded shapes that launched most.
    """

    annotations: list[HostRange] = []
    elsewhere_ns: int = 0
    more_ns: int = 0
    projected: bool = False
    functions: list[HostRange] = []
    no_function_ns: int = 0
    more_functions_ns: int = 0
    calls: list[KernelSummary] = []
    operators: list[TracedOperator] = []
