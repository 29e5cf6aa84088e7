"""What torch.profiler writes in its events: categories, calls without a name, arguments."""

from __future__ import annotations

from sysbench.core.trace.trace_events import CollectiveCall, Kind
from sysbench.core.trace.trace_json import Args

KIND_OF = {
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.MODULE,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL,
    "Memset": Kind.FILL,
}
"""By the event's ``cat``; torch before 2.0 wrote the capitalised ones."""
NAMELESS = "INVALID"
"""Kineto's name for a call of CUDA's runtime that its table lacks: before torch 2.13 all of those
that CUDA 13 brought, every launch that a compiler wrote among them."""
LAUNCH_OF_CBID = {
    **{211: "cudaLaunchKernel", 214: "cudaLaunchKernel_ptsz"},
    **{269: "cudaLaunchCooperativeKernel", 270: "cudaLaunchCooperativeKernel_ptsz"},
    272: "cudaLaunchCooperativeKernelMultiDevice",
    **{311: "cudaGraphLaunch", 312: "cudaGraphLaunch_ptsz"},
    **{430: "cudaLaunchKernelExC", 431: "cudaLaunchKernelExC_ptsz"},
    **{505: "__cudaLaunchKernel", 506: "__cudaLaunchKernel_ptsz"},
}
"""The runtime's launches by CUPTI's number of the call (cupti_runtime_cbid.h of CUDA 13). Others
without a name, such as 502 to 504, prepare a launch and launch nothing."""
NUMBERED = "record_param_comms"
"""The operator of torch whose ``Seq`` numbers the collective that is launched inside it."""
RUNTIMES = ("cuda_runtime", "Runtime")
"""Categories whose calls have these numbers; the driver's numbers mean other calls."""
ON_HOST = {category: int(kind) for category, kind in KIND_OF.items() if kind < Kind.KERNEL}
ON_DEVICE = {category: int(kind) for category, kind in KIND_OF.items() if kind >= Kind.KERNEL}
UNREAD = frozenset(
    ("cuda_profiler_range", "glow_runtime", "hpu_op", "mtia_ccp_events", "mtia_insight")
)
"""Kineto's categories (``ActivityType.cpp``) of other devices' events, and of times that CUPTI's
range profiler gives in place of kernels."""
PYTHON = "python_function"
PROJECTED = "gpu_user_annotation"
PYTHON_FILE = ".py("
"""In the name of a Python function: ``train.py(12): step``, with the function's first line."""
OF_TORCH = ("torch/", "<")
"""Begins of the names of functions that are torch's own, or that no file has."""
INSTALLED_TORCH = "-packages/torch/"
INSTANT = "cpu_instant_event"

NONE = -1
MOST_ELEMENTS = 2**48
LONGEST_TEXT = 256
"""A real trace stays far below these; a file that was packed to be huge does not."""


def call_of(args: Args) -> CollectiveCall:
    """The arguments of a collective, with what is of another type than torch's as absent."""
    texts = (args.collective, args.dtype, args.group, args.ranks)
    name, dtype, group, ranks = (
        text[:LONGEST_TEXT] if isinstance(text, str) else "" for text in texts
    )
    counts = (args.in_elements, args.out_elements, args.group_size)
    first, last, size = (
        count if isinstance(count, int) and 0 <= count < MOST_ELEMENTS else NONE for count in counts
    )
    return CollectiveCall(name, dtype, first, last, size, group, ranks)


def named(name: str, category: str, args: Args) -> str:
    """The name of a launch that the profiler had no name for; else the name as it is."""
    if name != NAMELESS or category not in RUNTIMES or not isinstance(args.cbid, int):
        return name
    return LAUNCH_OF_CBID.get(args.cbid, name)
