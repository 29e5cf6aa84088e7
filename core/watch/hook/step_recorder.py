"""Records when a training process waits for input, runs forward, backward and its optimizer.

This file runs inside of the user's process. It uses the standard library only, in the syntax of
Python 3.8, and leaves nothing in the user's models: pickles and compiled code stay as they are;
`torch_patches` has what it does to torch. Marks are lines of JSON, one array each, in a file of the
process; `sysbench.core.watch.job_steps` reads them. Times are of the monotonic clock in
nanoseconds, which all processes of a host share.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib
import importlib.util
import json
import os
import socket
import sys
import time
from threading import get_ident
from typing import Any

FLUSH_NS = 200_000_000
"""Marks are written at the first step that ends after this time, so that a short step pays little.
A killed process loses at most this much of them."""
STEP_VARIABLE = "SYSBENCH_STEP_ON"
"""``package.module:Class.function``: each call of it is a step."""
WINDOW_VARIABLE = "SYSBENCH_WINDOW"
"""``100:3`` traces three steps after the hundredth, on rank 0."""
WINDOW_FILE = "window"
"""File in the folder of the marks; each time it is written, that many next steps are traced, or
with the word `MEMORY` after their number the holders of memory are counted in them."""
MEMORY_VARIABLE = "SYSBENCH_MEMORY"
"""``100:3`` counts the holders of memory in three steps after the hundredth, on rank 0."""
MEMORY = "memory"
KINETO_VARIABLE = "KINETO_LOG_LEVEL"
"""Minimum severity that torch's profiler logs: read when torch is loaded, and when the process
profiles for the first time, which else makes it log two lines of each profile."""
MAX_INPUTS = 100
MAX_WAITS = 64
"""Waits for collectives that are recorded in a step."""
MEMORY_NS = 5_000_000
"""Bytes of the CUDA allocator are read at the first step after this time: reading takes some
20 us."""

_now = time.monotonic_ns
_encode = json.JSONEncoder(separators=(",", ":")).encode


def start_recorder(folder: str) -> None:
    """Wait for the import of torch in this process; a process without it is left alone."""
    recorder = Recorder(folder)
    _after_import("torch", recorder.install, recorder.quiet_profiler)
    module, _, function = os.environ.get(STEP_VARIABLE, "").partition(":")
    if module and function:
        count_calls = _neighbour("torch_patches").count_calls
        _after_import(module, lambda: count_calls(recorder, module, function))


def _after_import(name: str, work: Any, around: Any = contextlib.nullcontext) -> None:
    if name in sys.modules:
        work()
    else:
        sys.meta_path.insert(0, _Finder(name, work, around))


class _Finder:
    """Lets the import of a module happen as usual, then does its work."""

    def __init__(self, name: str, work: Any, around: Any) -> None:
        self.name = name
        self.work = work
        self.around = around

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            with self.around():
                execute(module)
            self.work()

        loader.exec_module = exec_module
        return spec


def _neighbour(name: str) -> Any:
    """Load a module of this file's folder, which is not on the path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec: Any = importlib.util.spec_from_file_location("_sysbench_" + name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorder:
    """The marks of this process.

    A mark is ``[kind, start, end, device_ns, *facts]``; ``device_ns`` is the time between two CUDA
    events, read once they have passed and without a synchronisation, null on the CPU. Kinds are:

    - ``i`` input; facts: the line that asked for it, the loader's workers, whether a batch came
    - ``f`` forward; facts: whether gradients are on, tokens, samples, whether the module
      trains
    - ``b`` backward
    - ``o`` optimizer; facts: its number, whether it ran inside of a backward, allocated, peak and
      reserved bytes, which are read every `MEMORY_NS`
    - ``c`` waiting for a collective
    - ``u`` update of a gradient scaler
    - ``s`` the function that the user named; facts: the same bytes
    - ``w`` steps under a profiler, or whose memory was counted, from its start to the end of its
      export; facts: their number, the name of the file

    A mark may lie inside of another, whose time then includes it. ``["process", {...}]`` comes
    first.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._is_quiet = False
        self._torch: Any = None
        self._patches: Any = None
        self._memory_recorder: Any = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin a file of its own: a child made by fork does, too."""
        self.broken = False
        self._file = -1
        self._waiting: Any = collections.deque()
        self._ended: Any = collections.deque(
            maxlen=4
        )  # the last marks, for the thread that samples
        self._spare_events: list[Any] = []
        self._flushed_ns = self._memory_ns = 0
        self._main = get_ident()
        self._numbers: dict[int, int] = {}
        self._places: dict[tuple[int, int], tuple[Any, str]] = {}
        self._input_began: Any = None
        self._forward_began: Any = None
        self._backward_began: Any = None
        self._optimizer_began: Any = None
        self._wait_began: Any = None
        self._gradients_ended: Any = None
        self._call_began: Any = None
        self._on_cuda = False
        self._steps = self._waits = 0
        self._profiler: Any = None
        self._window_began = self._window_steps = self._window_left = 0
        first, _, count = os.environ.get(WINDOW_VARIABLE, "").partition(":")
        self._planned = (_number(first) or 0, _number(count) or 0)
        first, _, count = os.environ.get(MEMORY_VARIABLE, "").partition(":")
        self._planned_memory = (_number(first) or 0, _number(count) or 0)
        self._asked_ns = self._written_ns(0)

    @contextlib.contextmanager
    def quiet_profiler(self) -> Any:
        """Let torch's profiler log nothing, unless the user has chosen what it logs."""
        if KINETO_VARIABLE in os.environ:
            yield
            return
        self._is_quiet = True
        os.environ[KINETO_VARIABLE] = "99"
        try:
            yield
        finally:
            os.environ.pop(KINETO_VARIABLE, None)

    def install(self) -> None:
        import torch  # lazy: this process has just imported it

        self._torch = torch
        self._patches = _neighbour("torch_patches").TorchPatches(self, torch)
        self._patches.install(_after_import)
        atexit.register(self._at_exit)
        # After the line above: functions at exit run in reverse order, and this one can give up.
        holders = _neighbour("memory_holders")
        memory = _neighbour("memory_recorder")
        self._memory_recorder = memory.MemoryRecorder(self, torch, self._patches, holders)
        try:
            host = _neighbour("host_recorder").HostRecorder(self)
            host.start(self._patches, from_now=bool(os.environ.get(STEP_VARIABLE)))
        except Exception as error:
            self.give_up(repr(error))

    def uninstall(self) -> None:
        """Take the hooks off torch's and the user's modules."""
        self._patches.uninstall()

    def _can_begin(self) -> bool:
        return get_ident() == self._main and not self.broken

    def begin_input(self) -> bool:
        """A loader is asked for a batch; whether that is to be recorded."""
        if self._input_began is not None or not self._can_begin():
            return False
        self._input_began = _now()
        return True

    def end_input(self, frame: Any, workers: Any, has_batch: bool) -> None:
        """The loader returns; ``frame`` is what asked it."""
        now, began = _now(), self._input_began
        self._input_began = None
        try:
            self._add("i", began, now, None, self._place(frame), workers, has_batch)
        except Exception as error:
            self.give_up(repr(error))

    def _place(self, frame: Any) -> str:
        """Return the line that iterates over a loader: the innermost outside of libraries."""
        asked = frame
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        frame = frame or asked
        # By its identity, since code has a slow hash.
        code, place = self._places.get((id(frame.f_code), frame.f_lasti), (None, ""))
        if code is not frame.f_code:
            place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            place = place.replace("],[", "] [")  # see `_write`
            self._places[id(frame.f_code), frame.f_lasti] = (frame.f_code, place)
        return place

    def end_scaled_step(self) -> None:
        now = _now()
        self._add("u", now, now, None)

    def begin_call(self) -> bool:
        if self._call_began is not None or self._torch is None or not self._can_begin():
            return False
        self._call_began = (_now(), self._event())
        return True

    def end_call(self) -> None:
        try:
            now, (began, first) = _now(), self._call_began
            self._call_began = None
            self._add("s", began, now, (first, self._event()), *self._memory(now))
            self._count_step(now)
        except Exception as error:
            self.give_up(repr(error))

    def begin_forward(self) -> bool:
        """Whether an outermost module begins."""
        if (
            self._forward_began is not None  # compiled in place, inside of another module
            or self._backward_began is not None  # activations that are computed again
            or not self._can_begin()
        ):
            return False
        self._on_cuda = self._on_cuda or self._torch.cuda.is_initialized()
        self._forward_began = (_now(), self._event())
        return True

    def end_forward(self, module: Any, values: Any, named: Any) -> None:
        try:
            now, (began, first) = _now(), self._forward_began
            self._forward_began = None
            has_gradients = self._torch.is_grad_enabled()
            tokens, samples = _amount(values, named)
            events = (first, self._event())
            self._add("f", began, now, events, has_gradients, tokens, samples, module.training)
        except Exception as error:
            self.give_up(repr(error))

    def begin_backward(self) -> bool:
        """Whether gradients are computed that are no part of a module's output."""
        if (
            self._backward_began is not None
            or self._forward_began is not None
            or not self._can_begin()
        ):
            return False
        self._backward_began = (_now(), self._event())
        return True

    def end_gradients(self) -> None:
        """The gradients are computed; those of other ranks may be missing."""
        self._gradients_ended = (_now(), self._event())

    def end_backward(self) -> None:
        now, (began, first) = _now(), self._backward_began
        self._backward_began = None
        if self._gradients_ended is not None:
            since, last = self._gradients_ended
            self._gradients_ended = None
            self._add("c", since, now, (last, self._event()))
        self._add("b", began, now, (first, self._event()))

    def begin_wait(self) -> bool:
        """Whether the process waits for a collective that is to be recorded."""
        if self._wait_began is not None or self._waits >= MAX_WAITS or not self._can_begin():
            return False
        self._wait_began = (_now(), self._event())
        return True

    def end_wait(self) -> None:
        now, (began, first) = _now(), self._wait_began
        self._wait_began = None
        self._waits += 1
        self._add("c", began, now, (first, self._event()))

    def begin_optimizer(self, optimizer: Any, values: Any, named: Any) -> None:
        self._optimizer_began = (_now(), self._event())

    def end_optimizer(self, optimizer: Any, values: Any, named: Any) -> None:
        if self._optimizer_began is None or self.broken:
            return
        try:
            now, (began, first) = _now(), self._optimizer_began
            self._optimizer_began = None
            number = self._numbers.setdefault(id(optimizer), len(self._numbers))
            inside = self._backward_began is not None
            events = (first, self._event())
            self._add("o", began, now, events, number, inside, *self._memory(now))
            if number == 0 and not inside and self._call_began is None:
                self._count_step(now)
        except Exception as error:
            self.give_up(repr(error))

    def _count_step(self, now: int) -> None:
        self._steps += 1
        self._waits = 0
        self._memory_recorder.end_step(self._steps)
        if now - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = now
            self._write(only_passed=True)
            self._look_for_window()
        if self._profiler is not None:
            self._window_left -= 1
            self._step_range.__exit__(None, None, None)
            if self._window_left:
                self._mark_step()
            else:
                self._close_window()
        elif self._planned[1] and self._steps >= self._planned[0]:
            if self._open_window(self._planned[1]):
                self._planned = (0, 0)
        elif self._planned_memory[1] and self._steps == self._planned_memory[0]:
            self._open_window(self._planned_memory[1], of_memory=True)

    def _look_for_window(self) -> None:
        written_ns = self._written_ns(self._asked_ns)
        if written_ns != self._asked_ns and self._profiler is None:
            with open(os.path.join(self.folder, WINDOW_FILE)) as file:
                count, *what = file.read(20).split() or [""]
            if not _number(count) or self._open_window(int(count), of_memory=what == [MEMORY]):
                self._asked_ns = written_ns

    def _written_ns(self, unknown: int) -> int:
        try:
            return os.stat(os.path.join(self.folder, WINDOW_FILE)).st_mtime_ns
        except OSError:
            return unknown

    def _open_window(self, count: int, *, of_memory: bool = False) -> bool:
        """Begin a window; return whether the request is done, and not to be tried again later."""
        if (_number(os.environ.get("RANK")) or 0) != 0:
            return True
        if of_memory:
            self._memory_recorder.open(count)
            return True
        if self._patches.is_profiling():
            return False  # the user's own comes first
        self._window_began = time.monotonic_ns()
        self._window_steps = self._window_left = count
        profiler: Any = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        cuda: Any = self._torch.cuda
        if cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
            # Kernels launched before are not in the trace: while they run, the GPU looks idle.
            cuda.synchronize()
        # With stacks the trace has the classes of the modules.
        self._profiler = profiler.profile(
            activities=activities, record_shapes=True, with_stack=True
        )
        # Set after torch was loaded, the variable would let the profiler log even more.
        with self.quiet_profiler() if self._is_quiet else contextlib.nullcontext():
            self._profiler.start()
        self._mark_step()
        return True

    def make_way(self, profiler: Any) -> None:
        """The user's profiler is about to start: end a window, with the steps that it has."""
        if profiler is not self._profiler:
            self._cut_window()

    def _cut_window(self) -> None:
        """End an open window with the steps that it has."""
        if self._profiler is None:
            return
        try:
            self._step_range.__exit__(None, None, None)
            self._window_steps -= self._window_left
            self._close_window()
        except Exception as error:
            self.give_up(repr(error))

    def _mark_step(self) -> None:
        """Begin a step in the trace, under the name that torch's profiler gives to its own."""
        number = self._window_steps - self._window_left
        profiler: Any = importlib.import_module("torch.profiler")
        self._step_range = profiler.record_function(f"ProfilerStep#{number}")
        self._step_range.__enter__()

    def _close_window(self) -> None:
        window, self._profiler = self._profiler, None
        window.stop()
        if not self._window_steps:
            return
        name = f"window-{self._steps}-{os.getpid()}.json"
        path = os.path.join(self.folder, name)
        window.export_chrome_trace(path + ".part")
        os.replace(path + ".part", path)
        self.add_window(self._window_began, self._window_steps, name)

    @property
    def step_count(self) -> int:
        return int(self._steps)

    def add_window(self, began: int, count: int, name: str) -> None:
        """Mark steps that were slowed down, and the file of them."""
        self._add("w", began, _now(), None, count, name)
        self._write(only_passed=True)

    def _event(self) -> Any:
        """An event on the current stream; None without CUDA and while a graph is captured."""
        if not self._on_cuda:
            return None
        cuda = self._torch.cuda
        try:
            if cuda.is_current_stream_capturing():
                return None
            event = self._spare_events.pop() if self._spare_events else None
            if event is None or event.device.index != cuda.current_device():
                event = cuda.Event(enable_timing=True)
            event.record()
        except Exception as error:
            self.give_up(repr(error))
            return None
        return event

    def _memory(self, now: int) -> tuple[Any, Any, Any]:
        if not self._on_cuda or now - self._memory_ns < MEMORY_NS:
            return None, None, None
        self._memory_ns = now
        facts = self._torch.cuda.memory.memory_stats_as_nested_dict()
        held, reserved = facts["allocated_bytes"]["all"], facts["reserved_bytes"]["all"]
        return held["current"], held["peak"], reserved["current"]

    def _add(self, kind: str, began: int, ended: int, events: Any, *facts: Any) -> None:
        self._waiting.append(([kind, began, ended, None, *facts], events))
        self._ended.append((kind, began, ended))
        if self._memory_recorder.is_counting:
            self._memory_recorder.end_phase(kind)

    def _write(self, *, only_passed: bool) -> None:
        """Write the marks whose events have passed."""
        marks = []
        while self._waiting:
            mark, events = self._waiting[0]
            if events is not None and None not in events:
                try:
                    if events[1].query():
                        mark[3] = round(1e6 * events[0].elapsed_time(events[1]))
                        self._spare_events += events
                    elif only_passed:
                        break
                except RuntimeError:  # after a fault of the device its times stay unknown
                    pass
            self._waiting.popleft()
            marks.append(mark)
        if marks:
            # One call of the encoder is much cheaper than one for each mark.
            lines = _encode(marks)[1:-1].replace("],[", "]\n[") + "\n"
            try:
                os.write(self._open(), lines.encode())
            except OSError:  # a full disk, a deleted folder: the job goes on without marks
                self._file = -1

    def _open(self) -> int:
        if self._file < 0:
            name = f"{socket.gethostname()}-{os.getpid()}.jsonl"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(os.path.join(self.folder, name), flags, 0o600)
            os.write(self._file, (json.dumps(["process", self._facts()]) + "\n").encode())
        return self._file

    def _facts(self) -> dict[str, Any]:
        torch, environ = self._torch, os.environ
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "rank": _number(environ.get("RANK")),
            "world_size": _number(environ.get("WORLD_SIZE")),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "program": sys.argv[0] if sys.argv else "",
            "epoch_ns": time.time_ns() - time.monotonic_ns(),
            "device": "cpu",
        }
        if torch.cuda.is_initialized():
            index = torch.cuda.current_device()
            facts["device"] = f"cuda:{index}"
            facts["device_name"] = torch.cuda.get_device_name(index)
        return facts

    def give_up(self, why: str) -> None:
        """Record nothing more: an error of this file stays out of the user's code."""
        self.broken = True
        self.uninstall()
        self._waiting.append((["error", why], None))
        self._cut_window()
        self._write(only_passed=False)

    def _at_exit(self) -> None:
        self._cut_window()  # a profiler with stacks that runs when Python ends waits for it forever
        self._write(only_passed=False)


def _is_library(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith("<frozen")


def _number(text: Any) -> Any:
    return int(text) if text is not None and text.isdecimal() else None


def _amount(values: Any, named: Any) -> tuple[Any, Any]:
    """Tokens, of integers in two dimensions, and samples of the first tensor with a dimension.

    It is an argument, or in a sequence or mapping that is one.
    """
    queue = [*values, *named.values()]
    for one in queue:  # it grows in the loop
        shape = getattr(one, "shape", None)
        if shape is not None and hasattr(one, "is_floating_point"):
            if shape:
                is_tokens = len(shape) == 2 and not one.is_floating_point()
                return (shape[0] * shape[1] if is_tokens else None), shape[0]
        elif len(queue) > MAX_INPUTS:
            break
        elif isinstance(one, dict):
            queue += one.values()
        elif isinstance(one, (tuple, list)):
            queue += one
        elif hasattr(one, "__dataclass_fields__"):
            queue += vars(one).values()
    return None, None
