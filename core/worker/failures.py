"""Convert a pass's exception into an event, with the state of the allocator that refused."""

from __future__ import annotations

import errno
import linecache
import os
import re
import traceback
from bdb import BdbQuit
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import torch

from sysbench.core.formatting import first_line, short_path
from sysbench.core.memory.oom import CPU_REFUSAL, requested_bytes
from sysbench.core.record.events import OutOfMemory, WorkerFailed
from sysbench.core.runs.worker_process import Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.limits import lift_memory_limit
from sysbench.core.worker.workloads.stepped_workload import StepError

CPU_REASONS = {
    "free_bytes": "on the CPU only the memory pass knows them",
    "allocated_bytes": "the CPU allocator keeps no count; the memory pass does",
    "reserved_bytes": "the CPU allocator reserves nothing ahead",
    "largest_free_bytes": "the CPU allocator asks the system for each block",
    "op": "only the memory pass records operators on the CPU",
}
NO_BLOCKS = "only torch's caching allocator has blocks"
NO_NODE = "on CUDA only backward's functions are known; see the expression"


class AllocatorState(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, named as in `core.record.memory.Oom`; None with a reason in ``missing``."""

    requested_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    capacity_bytes: int | None = None
    op: str | None = None
    missing: dict[str, str] = {}


class OomObserver:
    """Observer of CUDA's allocator, called before it raises.

    Attributes:
        last: State at the latest refusal, which need not end the pass: some libraries retry with
            less.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.last: AllocatorState | None = None
        self._spec = spec
        if spec.on_cuda:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            observe_refusals(self._note)

    def _note(self, device: int, requested: int, *_: int) -> None:
        node = torch._C._current_autograd_node()
        self.last = msgspec.structs.replace(
            cuda_state(self._spec, None if node is None else node.name()),
            requested_bytes=requested,
        )


def observe_refusals(observer: Any) -> None:
    """Have the caching allocator call this before it raises; other allocators call nothing."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None and has_caching_allocator():
        attach(observer)


def has_caching_allocator() -> bool:
    """Whether CUDA's memory is that of torch's own allocator: of blocks, with a history."""
    return bool(torch.cuda.get_allocator_backend() == "native")


def state_now(spec: RunSpec) -> AllocatorState:
    """State after the step: tensors local to the operator are already freed."""
    return cuda_state(spec) if spec.on_cuda else _cpu_state(spec)


def cuda_state(spec: RunSpec, op: str | None = None) -> AllocatorState:
    """The caching allocator's counters and the device's free bytes within the limit."""
    device = torch.device(spec.device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    free = torch.cuda.mem_get_info(device)[0]
    if spec.memory_limit:
        # The cap counts reserved bytes, so cached free blocks do not allow a new one.
        free = min(free, max(0, spec.memory_limit - reserved))
    index = torch.cuda.current_device() if device.index is None else device.index
    has_blocks = has_caching_allocator()
    segments = torch.cuda.memory_snapshot() if has_blocks else []  # type: ignore[no-untyped-call]
    blocks = (
        block for segment in segments if segment["device"] == index for block in segment["blocks"]
    )
    return AllocatorState(
        free_bytes=free,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        # Freed blocks that a stream still uses are not "inactive": no request can have them yet.
        largest_free_bytes=max(
            (block["size"] for block in blocks if block["state"] == "inactive"), default=0
        )
        if has_blocks
        else None,
        capacity_bytes=reserved + free,
        op=op,
        missing={"op": NO_NODE} | ({} if has_blocks else {"largest_free_bytes": NO_BLOCKS}),
    )


def _cpu_state(spec: RunSpec) -> AllocatorState:
    resident = psutil.Process().memory_info().rss
    # "available" excludes what this process has resident, so both together are its capacity.
    capacity = spec.memory_limit or psutil.virtual_memory().available + resident
    return AllocatorState(capacity_bytes=capacity, missing=CPU_REASONS)


def users_place(error: BaseException, spec: RunSpec) -> str:
    """``model.py:12 in make: open(path)``: innermost line of the user's code in the chain.

    Empty for built-in models, and if no user code was running.
    """
    folder = os.path.dirname(spec.model_file) + os.sep
    place = ""
    for link in _chain(error) if spec.model_file else ():
        frames = traceback.extract_tb(link.__traceback__)
        own = [frame for frame in frames if _is_users(frame.filename, folder)]
        if isinstance(link, SyntaxError) and link.filename and _is_users(link.filename, folder):
            line = (link.text or "").strip()
            place = f"{os.path.relpath(link.filename, folder)}:{link.lineno}: {line}"
        elif own:
            name = os.path.relpath(own[-1].filename, folder)
            place = f"{name}:{own[-1].lineno} in {own[-1].name}: {expression_of(own[-1]) or ''}"
    return place.removesuffix(": ")


MAX_EXPRESSION = 80
NO_PLACE = re.compile(r"(^|[\\/])torch[\\/](_|fx|nn[\\/]modules|overrides|utils|library|autograd)")
"""Files of torch that only dispatch a call."""


def library_place(error: BaseException) -> str:
    """``optim/_adafactor.py:359 in _single_tensor_adafactor: step_t.item()``: innermost line of a
    library that reads a value; empty if only this program and torch's dispatch are on the stack."""
    own, link = os.path.dirname(os.path.dirname(__file__)) + os.sep, error
    while link.__cause__ is not None:
        link = link.__cause__
    frames = [
        frame
        for frame in traceback.extract_tb(link.__traceback__)
        if f"{os.sep}site-packages{os.sep}" in frame.filename
        and not frame.filename.startswith(own)
        and not NO_PLACE.search(frame.filename)
    ]
    if not frames:
        return ""
    last = frames[-1]
    where = f"{short_path(last.filename)}:{last.lineno} in {last.name}"
    return f"{where}: {(expression_of(last) or '')[:MAX_EXPRESSION]}".removesuffix(": ")


def _is_users(filename: str, folder: str) -> bool:
    """Whether a file belongs to the user's project and not to an installed library."""
    return filename.startswith(folder) and f"{os.sep}site-packages{os.sep}" not in filename


def expression_of(frame: traceback.FrameSummary) -> str | None:
    """Source of the expression that the frame evaluated, on one line; None if unavailable."""
    if frame.lineno is None or frame.end_lineno is None:
        return frame.line or None
    lines = linecache.getlines(frame.filename)[frame.lineno - 1 : frame.end_lineno]
    if not lines or frame.colno is None or frame.end_colno is None:
        return frame.line or None
    # Columns count bytes. Cut the end first: cutting the start of a single line would shift it.
    lines[-1] = lines[-1].encode()[: frame.end_colno].decode(errors="replace")
    lines[0] = lines[0].encode()[frame.colno :].decode(errors="replace")
    return " ".join("".join(lines).split())


NATIVE_REFUSALS = (
    *("std::bad_alloc", "Cannot allocate memory", "could not create a memory"),
    *("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
    *("CUDA driver error: out of memory", "Triton Error [CUDA]: out of memory"),
    *("Cuda failure 2 'out of memory'", "Cuda failure 'out of memory'"),
)
"""Out-of-memory messages of the C++ library, of host libraries and of direct callers of CUDA:
libraries, expandable segments, Triton's launcher, NCCL."""

WATCHER = os.path.join("core", "worker", "memory", "tagger.py")
"""Frames of the memory pass between the model's code and torch, which allocate nothing."""

NOT_SAID = "the allocator did not report the requested size"
STACK_FRAMES = 12
DEBUGGED = "the code starts a debugger, and a worker has no terminal: remove breakpoint() or pdb"


def report_failure(
    error: Exception, spec: RunSpec, report: Report, observer: OomObserver | None = None
) -> None:
    """Report the exception as out of memory or as a failure, with its place.

    Args:
        observer: Has the allocator's state at the refusal; without one it is read now.
    """
    if spec.memory_limit:
        lift_memory_limit()
    try:
        event = _describe(error, spec, observer)
    except Exception as problem:  # any part of an exception can be the user's own code
        event = WorkerFailed(
            kind=type(error).__name__,
            message=f"it cannot be described: {type(problem).__name__}: {message_of(problem)}",
            traceback="".join(traceback.format_tb(error.__traceback__)),
            is_cuda_error=False,
        )
    report(event)


def _describe(
    error: Exception, spec: RunSpec, observer: OomObserver | None
) -> OutOfMemory | WorkerFailed:
    phase, cause = _phase_and_cause(error)
    if is_out_of_memory(cause):
        observed = observer.last if observer is not None else None
        return _out_of_memory(cause, phase, observed or state_now(spec), spec)
    return WorkerFailed(
        kind=_kind(cause),
        message=message_of(cause),
        traceback=_bounded("".join(traceback.format_exception(error)), MAX_TRACEBACK),
        place=users_place(error, spec),
        is_cuda_error=spec.on_cuda and is_cuda_error(cause),
    )


def message_of(error: BaseException) -> str:
    """Text of an exception, at most about `MAX_MESSAGE` characters; its type's name if blank."""
    if isinstance(error, BdbQuit):
        return DEBUGGED
    try:
        text = str(error)
    except Exception as problem:
        return f"its __str__ raises {type(problem).__name__}"
    return _bounded(text, MAX_MESSAGE) if text.strip() else type(error).__name__


def _bounded(text: str, most: int) -> str:
    """Leave out the middle of a long text."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[: most // 2]} … {left_out:,} characters … {text[-most // 2 :]}"


MAX_MESSAGE = 2**14
MAX_TRACEBACK = 2**17

CUDA_FAILURE = re.compile(
    r"\bCUDA(?: driver)? error:|\bCUDA unknown error\b|\bTriton Error \[CUDA\]|\bCuda failure\b"
    r"|\bunhandled cuda error\b|\bcuDNN error:|\bcuFFT error:"
    r"|\bCU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_[A-Z]|\bNVIDIA driver on your system\b"
)
"""What torch, Triton, NCCL and NVIDIA's libraries write of a call of CUDA that failed."""


def is_cuda_error(error: Exception) -> bool:
    """Whether a call of CUDA or one of its libraries failed, which torch raises as RuntimeError."""
    return isinstance(error, RuntimeError) and bool(CUDA_FAILURE.search(message_of(error)))


def _phase_and_cause(error: Exception) -> tuple[str, Exception]:
    """Phase of the step, and the exception of the chain to report.

    A refusal can cause others while the stack unwinds; the one with a size is reported.
    """
    chain = list(_chain(error))
    phase = next((link.phase for link in chain if isinstance(link, StepError)), "build")
    causes = [
        link for link in chain if isinstance(link, Exception) and not isinstance(link, StepError)
    ] or [error]
    if is_out_of_memory(causes[0]):
        refusals = (
            cause
            for cause in causes
            if is_out_of_memory(cause) and requested_bytes(message_of(cause))
        )
        return phase, next(refusals, causes[0])
    return phase, causes[0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and those that it followed, each once: a chain can be a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _out_of_memory(
    cause: Exception, phase: str, state: AllocatorState, spec: RunSpec
) -> OutOfMemory:
    text = message_of(cause)
    frames = _own_frames(cause)
    fields = msgspec.structs.asdict(state)
    fields["requested_bytes"] = state.requested_bytes or requested_bytes(text)
    fields["missing"] = state.missing | {"requested_bytes": NOT_SAID}
    return OutOfMemory(
        phase=phase,
        limit_bytes=spec.memory_limit or None,
        message=first_line(text),
        stack=[
            f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}"
            for frame in frames[:STACK_FRAMES]
        ],
        expression=expression_of(frames[0]) if frames else None,
        **fields,
    )


def ran_out_of_memory(error: Exception) -> bool:
    return is_out_of_memory(_phase_and_cause(error)[1])


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = message_of(error) if isinstance(error, RuntimeError) else ""
    return bool(text) and (
        CPU_REFUSAL.search(text) is not None or any(word in text for word in NATIVE_REFUSALS)
    )


def _kind(error: Exception) -> str:
    # A number that the user's code made up has no name.
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return f"{type(error).__name__} {os.strerror(error.errno)} ({error.errno})"
    return type(error).__name__


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Frames, innermost first, without those of torch and the memory pass if others exist."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if f"{os.sep}torch{os.sep}" not in frame.filename and not frame.filename.endswith(WATCHER)
    ]
    return list(reversed(own or frames))
