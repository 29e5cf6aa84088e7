"""Parts of the record on imported files: nsys exports, marked steps, collectives, ranges."""

from __future__ import annotations

from typing import Literal

import msgspec

Style = Literal["push/pop", "start/end"]


class KernelSummary(msgspec.Struct, frozen=True):
    """All calls of one kernel in the export: a row of NVIDIA's ``cuda_gpu_kern_sum``.

    Also a row of ``cuda_gpu_mem_time_sum``, with ``name`` the kind of copy, and of
    ``cuda_api_sum``, with ``name`` the call on the host. ``std_ns`` is the sample's standard
    deviation, 0 for a single call. ``share`` is of all rows' time.
    """

    name: str
    instances: int
    total_ns: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    share: float


class NvtxRange(msgspec.Struct, frozen=True):
    """All instances of one NVTX range that launched work: a row of ``nvtx_gpu_proj_sum``.

    ``projected_ns`` is, for each instance, from the first to the last of the GPU work that its own
    thread launched in it, and ``range_ns`` the time on the host; both summed. ``operations`` counts
    the CUDA calls that launched that work, ``kernels`` and ``kernel_ns`` the kernels among it and
    their own time. ``process_kernels`` and ``process_kernel_ns`` count what any thread of the
    process launched while the range was open: autograd launches the backward pass from its worker
    threads, so ``kernels`` of a range around ``loss.backward()`` is nearly 0.
    """

    range: str
    style: Style
    instances: int
    projected_ns: int
    range_ns: int
    operations: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    kernels: int
    kernel_ns: int
    process_kernels: int
    process_kernel_ns: int


class Nvtx(msgspec.Struct, frozen=True):
    """NVTX ranges with GPU work, the longest projection first.

    ``elsewhere`` are ranges in which only other threads launched something: NVIDIA's report does
    not have them. ``ranges`` counts all instances, with and without work. ``outside_kernels`` were
    launched outside all ranges of their thread, ``unlinked_kernels`` by a call that was not
    recorded. torch's emit_nvtx numbers each call of an operator: ``folded`` are rows and elsewhere
    with all calls of an operator as one, and empty if no name has such numbers.
    """

    rows: list[NvtxRange] = []
    elsewhere: list[NvtxRange] = []
    folded: list[NvtxRange] = []
    ranges: int = 0
    outside_kernels: int = 0
    outside_kernel_ns: int = 0
    unlinked_kernels: int = 0
    unlinked_kernel_ns: int = 0


class Clocks(msgspec.Struct, frozen=True):
    """Wall, span and busy time of an export, null if nothing contains them.

    ``wall_ns`` is from the first to the last of everything recorded, host and devices; ``span_ns``
    from the first to the last kernel of the busiest device; ``busy_ns`` the time in which a kernel
    ran there, overlaps counted once.
    """

    wall_ns: int | None = None
    span_ns: int | None = None
    busy_ns: int | None = None


class NsysDevice(msgspec.Struct, frozen=True):
    """One device of an export. Times are of kernels unless the name has another kind.

    ``summed_ns`` counts an overlap once for each kernel, ``busy_ns`` once, and
    ``busy_with_copies_ns`` with copies and fills. ``exposed_communication_ns`` is the part of
    ``communication_ns`` in which no other kernel ran.
    """

    device: int
    name: str | None
    kernels: int
    copies: int
    span_ns: int
    busy_ns: int
    summed_ns: int
    busy_with_copies_ns: int
    communication_ns: int
    exposed_communication_ns: int


class NsysFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Content of an export without its table of kernels by phase, module and operator.

    ``schema`` is the version of the export's layout, null if the export has none.
    """

    kernel_summary: list[KernelSummary] = []
    memory_summary: list[KernelSummary] = []
    api_summary: list[KernelSummary] = []
    nvtx: Nvtx = Nvtx()
    clocks: Clocks = Clocks()
    devices: list[NsysDevice] = []
    schema: str | None = None
    nsys_version: str | None = None
    missing: dict[str, str] = {}


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


class RouterLoad(msgspec.Struct, frozen=True):
    """Rows that a router sent to each expert in one step, from the indices that it returned.

    A token counts once for each of the ``top_k`` experts that it goes to.
    """

    module: str
    top_k: int
    rows_by_expert: list[int]

    @property
    def mean(self) -> float:
        return sum(self.rows_by_expert) / len(self.rows_by_expert)

    @property
    def imbalance(self) -> float:
        """Rows of the busiest expert over the mean."""
        return max(self.rows_by_expert) / self.mean

    @property
    def padding_share(self) -> float:
        """Share of padding if each expert had as many rows as the busiest."""
        return 1 - 1 / self.imbalance


class ProductError(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of layers' forward products against the same in float32, root mean square over root
    mean square: in ``float8``, and in the dtype of ``autocast``. ``name`` is as in `LinearLayers`.
    Both are null where the weights are kept in blocks, so that no others are left to compare with.
    ``autocast_ns`` is the time of all their products in a step in that dtype, on a GPU.
    """

    name: str
    float8: float | None = None
    autocast: float | None = None
    autocast_ns: float | None = None
