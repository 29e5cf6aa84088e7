"""Samples the line at which a training process is, and notes what its collector and compiler do.

Like `step_recorder`, this file runs inside of the user's process, with the standard library only,
in the syntax of Python 3.8. A thread looks at the main thread some twenty times a second; it
synchronises nothing and keeps no object of the user but code. What it has counted is a file of JSON
of the process, which is replaced every few seconds; `sysbench.core.watch.job_block` reads it.
"""

from __future__ import annotations

import _thread
import atexit
import collections
import functools
import gc
import itertools
import json
import opcode
import operator
import os
import resource
import socket
import sys
import sysconfig
import time
import weakref
from typing import Any

INTERVAL_SECONDS = 0.05
"""Mean time between samples in the first minute; after it a fifth as often."""
QUICK_SAMPLES = 1500
FIRST_WRITE_SECONDS, WRITE_SECONDS = 0.5, 5.0
END_SECONDS = 5.0
"""The sampling thread ends within milliseconds, unless it never began."""
LATE_SECONDS = 0.0005
"""A sample that is later than this, time in the run queue aside, may have waited for Python's lock:
then its thread slept once more, after the timer."""
RUSAGE_THREAD: Any = getattr(resource, "RUSAGE_THREAD", None)
MAX_BUCKET = 64
"""Steps that are counted each on its own; the later ones are counted together."""
MAX_ROWS, MAX_POINTS, MAX_DEPTH = 2000, 128, 200
OPTIMIZER_CALLS = (3, 6, 12)
"""Calls of an optimizer at which its parameters are looked at."""
MAX_CALLS = 200
MAX_COLLECTIONS = 4096
MAX_COMPILATIONS = 64

RUNS_BACKWARD = "_engine_run_backward"
TAGS = {
    "torch/serialization.py": {"save": "save", "_save": "save", "_legacy_save": "save"},
    "torch/distributed/checkpoint/state_dict_saver.py": {"save": "save", "async_save": "save"},
    "torch/_tensor_str.py": {"_str": "print"},
    "torch/_dynamo/convert_frame.py": {"_compile": "compile", "__call__": "compile"},
    "torch/_inductor/compile_fx.py": {"compile_fx": "compile", "compile_fx_inner": "compile"},
    "torch/utils/checkpoint.py": {"unpack_hook": "recompute", "backward": "recompute"},
    "torch/distributed/distributed_c10d.py": {"wrapper": "wait"},
    "torch/nn/parallel/distributed.py": {"_pre_forward": "ddp", "_post_forward": "ddp"},
}
"""Functions of torch, by the end of their file's path, under which a sample is counted."""
USERS: dict[str, str] = {}


class _Clock(map):  # type: ignore[type-arg]
    """Takes the next value when Python's collector starts and when it stops.

    ``getattr`` of the name of the phase is a callback without a line of Python: at one, a signal's
    handler might run, and what it raises, such as `KeyboardInterrupt`, is lost in a callback.
    """

    start = stop = property(next)


class HostRecorder:
    """What a process did between its first optimizer step and now.

    The process's file has an object of these keys; a bucket is the number of steps that had ended,
    at most `MAX_BUCKET`:

    - ``lines``: ``[bucket, phase, tag, file, line, columns, function, opcode, callee, count]``;
      ``line`` is that of the innermost function outside of torch and of installed packages,
      ``columns`` those of the expression that runs, ``callee`` the function in which that waits,
      ``tag`` a value of `TAGS`, or ``before`` where Python's lock was given up soon after the
      sample was due, ``gc`` if its collector ran then, and ``phase`` the recorder's kind of mark
    - ``pauses``: ``[bucket, collections, ns, full collections, longest ns]`` of processor time
    - ``points``: ``[step, resident bytes]``
    - ``compilations``: ``[function, file, line, start_us, end_us, reason, failure]``
    - ``breaks``: reasons of graph breaks, with their counts
    - ``optimizers``: ``[name, tensors, elements, idle tensors, idle elements, foreach, fused,
      devices]``
    - ``parallel``: whether it finds unused parameters, samples inside of backward that exchange
      gradients, samples that do not
    - ``processor_ms``: of the sampling thread
    - ``failure``: the exception that ended sampling
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._pid = os.getpid()
        self._is_sampling = False
        self._resting = self._taken = 0
        self._wake, self._running = _thread.allocate_lock(), _thread.allocate_lock()
        self._lines: dict[Any, list[Any]] = {}
        self._kinds: dict[str, dict[str, str]] = {}
        self._pauses: dict[int, list[int]] = {}
        self._collections: Any = collections.deque(maxlen=2 * MAX_COLLECTIONS)
        clocks = [iter(clock, None) for clock in (time.thread_time_ns, time.monotonic_ns)]
        steps = map(operator.attrgetter("_steps"), itertools.repeat(recorder))
        times = zip(*clocks, steps, iter(gc.get_count, None))  # noqa: B905 -- of Python 3.10
        self._on_collection = functools.partial(getattr, _Clock(self._collections.append, times))
        self._collection = 0.0, 0.0
        self._points: list[list[int]] = []
        self._point_seconds = 0.2
        self._pointed = 0.0
        self._optimizers: dict[int, list[Any]] = {}
        self._calls: dict[int, int] = {}
        self._seen_calls = 0
        self._parallel: Any = None
        self._exchanges = [0, 0]
        self._processor_ms = 0.0
        self._failure = ""
        self._patches = recorder._patches
        installed = {sysconfig.get_paths().get(name, "") for name in ("stdlib", "platstdlib")}
        self._installed = tuple(path + os.sep for path in installed if path)
        atexit.register(self._at_exit)

    def start(self, *, from_now: bool) -> None:
        """Sample from the first optimizer step on, or from now; go on after `rest`."""
        if not self._patches.around_profilers(self.rest, self._go_on):
            return  # another version of torch: see `rest`
        self._recorder.look_at_optimizer = self._before_optimizer
        if os.environ.get("WORLD_SIZE", "1") != "1":
            self._patches.watch_parallel(self._keep_parallel)
        self._resting = 0
        self._go_on()
        if from_now:
            self._sample_from_now()

    def rest(self) -> None:
        """End the thread, as before any profiler of torch starts; one begins after it has stopped.

        With stacks a profiler takes on the state of each thread of Python in turn. Bytecode that
        runs then, such as a callback of the collector, may pass the interpreter's lock on to that
        very thread, which ends in a crash.
        """
        self._resting += 1
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        if self._is_sampling and os.getpid() == self._pid and self._wake.locked():
            self._wake.release()
            if self._running.acquire(timeout=END_SECONDS):  # the thread has ended
                self._running.release()
            else:
                self._resting += 1  # from now on: no memory was left to start the thread
                self._is_sampling, self._failure = False, "the sampling thread did not end"

    def _go_on(self) -> None:
        self._resting = max(0, self._resting - 1)
        if self._resting:
            return
        gc.callbacks.append(self._on_collection)
        if self._is_sampling:
            self._is_sampling = False
            self._sample_from_now()

    def _keep_parallel(self, module: Any) -> None:
        self._parallel = weakref.ref(module)

    def _before_optimizer(self, optimizer: Any) -> None:
        self._sample_from_now()
        self._seen_calls += 1
        if self._seen_calls >= MAX_CALLS:
            self._recorder.look_at_optimizer = None
        call = self._calls[id(optimizer)] = self._calls.get(id(optimizer), 0) + 1
        if call in OPTIMIZER_CALLS:
            try:
                with self._patches.plain_tensors():
                    self._look_at(optimizer)
            except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
                self._recorder.look_at_optimizer = None  # it has no groups of parameters

    def _look_at(self, optimizer: Any) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        idle = [one for one in parameters if one.requires_grad and one.grad is None]
        groups = optimizer.param_groups
        foreach, fused = (any(group.get(key) for group in groups) for key in ("foreach", "fused"))
        is_off = any(group.get("foreach") is False for group in groups)
        facts = [
            type(optimizer).__name__,
            len(parameters),
            sum(one.numel() for one in parameters),
            len(idle),
            sum(one.numel() for one in idle),
            False if is_off else (foreach or None),
            fused,
            sorted({one.device.type for one in parameters}),
        ]
        before = self._optimizers.get(id(optimizer))
        if before is None or before[3] > len(idle):
            self._optimizers[id(optimizer)] = facts

    def _count_collections(self) -> None:
        """Count the collections since the last time."""
        for _ in range(len(self._collections) // 2):
            began, ended = self._collections.popleft(), self._collections.popleft()
            self._collection = began[1] / 1e9, ended[1] / 1e9
            row = self._pauses.setdefault(min(ended[2], MAX_BUCKET), [0, 0, 0, 0])
            # The machine may run other processes during a pause.
            spent = ended[0] - began[0]
            row[0] += 1
            row[1] += spent
            row[2] += not any(ended[3][1:])  # only a full one leaves no younger ones to count
            row[3] = max(row[3], spent)

    def _bucket(self) -> int:
        return min(int(self._recorder._steps), MAX_BUCKET)

    def _sample_from_now(self) -> None:
        if not self._is_sampling and not self._resting and os.getpid() == self._pid:
            self._is_sampling = True
            self._wake.acquire(False)
            self._running.acquire()
            try:
                # Not in `threading.enumerate()`, and ended with the process.
                _thread.start_new_thread(self._run, ())
            except RuntimeError as error:  # the limit of threads; Python ends
                self._running.release()
                self._is_sampling, self._failure = False, repr(error)
                self._recorder.look_at_optimizer = None

    def _run(self) -> None:
        try:
            self._sample_until_woken()
        except Exception as error:  # the user's process goes on without samples
            self._is_sampling = False
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._running.release()

    def _sample_until_woken(self) -> None:
        """Sample at uneven intervals, so that no loop runs in step with them."""
        written, pause, uneven = time.monotonic(), FIRST_WRITE_SECONDS, 0.0
        before_ms = self._processor_ms
        while True:
            uneven = (uneven + 0.6180339887) % 1.0
            seconds = INTERVAL_SECONDS * (1 if self._taken < QUICK_SAMPLES else 5) * (0.5 + uneven)
            due, queued, slept = time.monotonic() + seconds, _queued_seconds(), _sleeps()
            if self._wake.acquire(timeout=seconds):
                return
            self._taken += 1
            late = time.monotonic() - due
            if late > LATE_SECONDS:
                # An idle processor of a virtual machine can be milliseconds late by itself.
                late = late - (_queued_seconds() - queued) if _sleeps() - slept != 1 else 0.0
            self._count_collections()
            self._sample(due, late)
            self._processor_ms = before_ms + 1e3 * time.thread_time()
            if time.monotonic() - written > pause:
                self._write()
                written, pause = time.monotonic(), WRITE_SECONDS

    def _sample(self, due: float, late: float) -> None:
        """Count the line that runs, or what kept Python's lock since ``due`` until here."""
        frames = sys._current_frames()
        # With this frame the dictionary would be in a cycle, and keep the user's variables alive.
        del frames[_thread.get_ident()]
        frame = frames.get(self._recorder._main)
        if frame is None:
            return
        tag, callee, is_in_engine = "", "", frame.f_code.co_name == RUNS_BACKWARD
        user: Any = None
        for _ in range(MAX_DEPTH):
            code = frame.f_code
            kind = self._kinds.get(code.co_filename)
            if kind is None:
                kind = self._kinds[code.co_filename] = self._kind(code.co_filename)
            tag = tag or kind.get(code.co_name, "")
            if kind is USERS:
                user = user or frame
                if tag or self._recorder._backward_began is None:
                    break  # above the user's code inside of a backward may be a checkpoint
            if user is None:
                callee = code.co_name
            frame = frame.f_back
            if frame is None:
                break
        if is_in_engine:
            tag = self._tag_of_backward(frames) or tag
        at = time.monotonic()
        if late > LATE_SECONDS:
            if not tag and self._collection[0] <= due <= self._collection[1]:
                tag, at = "gc", due
            elif late < sys.getswitchinterval():  # after it the lock is taken from where it is kept
                tag, at = tag or "before", due
        self._count(user, tag, callee, at)
        self._sample_memory()
        parallel = self._parallel() if self._parallel is not None else None
        if parallel is not None and self._recorder._backward_began is not None:
            self._exchanges[not parallel.require_backward_grad_sync] += 1

    def _tag_of_backward(self, frames: Any) -> str:
        """On CUDA autograd computes activations again in a thread of its own."""
        for thread, inner in frames.items():
            frame = inner if thread != self._recorder._main else None
            for _ in range(MAX_DEPTH):
                if frame is None:
                    break
                kind = self._kinds.get(frame.f_code.co_filename)
                if kind is None:
                    name = frame.f_code.co_filename
                    kind = self._kinds[name] = self._kind(name)
                if kind.get(frame.f_code.co_name) == "recompute":
                    return "recompute"
                frame = frame.f_back
        return ""

    def _count(self, user: Any, tag: str, callee: str, at: float) -> None:
        phase = self._phase(at)
        place = (user.f_code, user.f_lasti) if user is not None else (None, 0)
        key = (self._bucket(), phase, tag, callee, *place)
        row = self._lines.get(key)
        if row is not None:
            row[-1] += 1
        elif len(self._lines) < MAX_ROWS:
            self._lines[key] = [key[0], phase, tag, *_position(user), callee, 1]

    def _phase(self, at: float) -> str:
        recorder = self._recorder
        for kind, began in (
            ("i", recorder._input_began),
            ("o", recorder._optimizer_began),
            ("b", recorder._backward_began),
            ("f", recorder.forward_began),
        ):
            if began is not None and began[0] <= 1e9 * at:
                return kind
        # A phase may have ended while the thread waited for the lock.
        for kind, start, end, *_ in recorder.recent_marks():
            if kind in "iobf" and start <= 1e9 * at <= end:
                return str(kind)
        return ""

    def _sample_memory(self) -> None:
        now = time.monotonic()
        if now - self._pointed < self._point_seconds:
            return
        self._pointed = now
        try:
            with open("/proc/self/statm", "rb") as file:
                pages = int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            return
        self._points.append([self._recorder._steps, pages * os.sysconf("SC_PAGE_SIZE")])
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._point_seconds *= 2

    def _kind(self, path: str) -> dict[str, str]:
        """`USERS` for the user's own code, else the tags of the file's functions."""
        name = path.replace(os.sep, "/")
        for end, tags in TAGS.items():
            if name.endswith(end):
                return tags
        is_installed = "-packages/" in name or name.startswith(self._installed)
        is_installed = is_installed or name.startswith(("<frozen", "<eval_with", "<torch"))
        return {} if is_installed or os.path.dirname(__file__) in path else USERS

    def _write(self) -> None:
        recorder = self._recorder
        self._count_collections()
        parallel = self._parallel() if self._parallel is not None else None
        breaks, compilations = _compiled()
        data = {
            "pid": self._pid,
            "lines": [*self._lines.values()],
            "pauses": [[bucket, *row] for bucket, row in dict(self._pauses).items()],
            "points": self._points,
            "compilations": compilations,
            "breaks": breaks,
            "optimizers": [*self._optimizers.values()],
            "parallel": None
            if parallel is None
            else [bool(parallel.find_unused_parameters), *self._exchanges],
            "processor_ms": self._processor_ms,
            "failure": self._failure,
        }
        name = f"{socket.gethostname()}-{self._pid}.host"
        path = os.path.join(recorder.folder, name)
        part = f"{path}.{_thread.get_ident()}"  # the last one is written by the main thread
        try:
            with open(part, "w") as file:
                # Not `json.dump`, which encodes without C and takes many times longer.
                file.write(json.dumps(data, separators=(",", ":")))
            os.replace(part, path)
        except OSError:  # a full disk, a deleted folder: the job goes on
            pass

    def _at_exit(self) -> None:
        if (self._is_sampling or self._failure) and os.getpid() == self._pid:
            self.rest()
            self._write()


def _queued_seconds() -> float:
    """How long this thread has waited for a processor; 0 where Linux does not count it."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _sleeps() -> int:
    """How often this thread has given up its processor to wait; 0 where nobody counts it."""
    return resource.getrusage(RUSAGE_THREAD).ru_nvcsw if RUSAGE_THREAD is not None else 0


def _position(frame: Any) -> tuple[str, int, Any, str, str]:
    """File, line, columns of the expression that runs (Python 3.11), function and opcode."""
    if frame is None:
        return "", 0, None, "", ""
    code, at = frame.f_code, frame.f_lasti
    line, columns = frame.f_lineno or 0, None
    if hasattr(code, "co_positions"):
        place = next(itertools.islice(code.co_positions(), at // 2, None), None)
        if place is not None and None not in place and place[0] == place[1]:
            line, columns = place[0], [place[2], place[3]]
    running = opcode.opname[code.co_code[at]] if 0 <= at < len(code.co_code) else ""
    return code.co_filename, line, columns, code.co_name, running


def _compiled() -> tuple[dict[str, int], list[Any]]:
    """Reasons of graph breaks, and what torch.compile has compiled, if it was used."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}, []
    try:
        breaks = {str(key)[:300]: int(n) for key, n in [*utils.counters["graph_break"].items()]}
        rows = [
            [
                str(one.co_name),
                str(one.co_filename),
                int(one.co_firstlineno or 0),
                int(one.start_time_us or 0),
                int(one.end_time_us or 0),
                str(one.recompile_reason or "")[:500],
                str(one.fail_reason or "")[:500],
            ]
            for one in utils.get_compilation_metrics()[-MAX_COMPILATIONS:]
        ]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # another version of torch
        return {}, []
    return breaks, rows
