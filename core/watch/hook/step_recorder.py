"""Records when a training process waits for input, runs forward, backward and its optimizer.

This file runs inside of the user's process. It uses the standard library only, in the syntax of
Python 3.8, and leaves nothing in the user's models: pickles and compiled code stay as they are;
`torch_patches` has what it does to torch. Marks are lines of JSON, one array each, in a file of the
process; `sysbench.core.watch.job_steps` reads them. Times are of the monotonic clock in
nanoseconds, which all processes of a host share.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import signal
import socket
import sys
import time
import traceback
import weakref
from threading import get_ident
from typing import Any

FLUSH_NS = 200_000_000
"""Marks are written at the first step that ends after this time, so that a short step pays little.
A killed process loses at most this much of them."""
STEP_VARIABLE = "SYSBENCH_STEP_ON"
"""``package.module:Class.function``: each call of it is a step."""
KINETO_VARIABLE = "KINETO_LOG_LEVEL"
"""Minimum severity that torch's profiler logs: read when torch is loaded, and when the process
profiles for the first time, which else makes it log two lines of each profile."""
MAX_WAITS = 64
"""Waits for collectives that are recorded in a step."""
MAX_WAITING = 4096
"""Marks after which they are written, although no step has ended."""
MAX_OTHERS = 64
"""Steps of other optimizers after which the one that counted them is not used any more."""
RECENT = 4
MEMORY_NS = 5_000_000
"""Bytes of the CUDA allocator are read at the first step after this time: reading takes some
20 us."""
UNKNOWN_MEMORY = (None, None, None)

_HERE = os.path.dirname(os.path.abspath(__file__))
_now = time.monotonic_ns
_encode = json.JSONEncoder(separators=(",", ":")).encode


def start_recorder(folder: str) -> None:
    """Wait for the import of torch in this process; a process without it is left alone."""
    recorder = Recorder(folder)
    recorder.after_import("torch", recorder.install, recorder.quiet_profiler)
    module, _, function = os.environ.get(STEP_VARIABLE, "").partition(":")
    if module and function:
        count_calls = _neighbour("torch_patches").count_calls
        recorder.after_import(module, lambda: count_calls(recorder, module, function))


class _Finder:
    """Lets the import of a module happen as usual, then does its work."""

    def __init__(self, name: str, work: Any, around: Any) -> None:
        self.name = name
        self.work = work
        self.around = around

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the next finder; who asks for it may import nothing."""
        if name != self.name:
            return None
        finders = list(sys.meta_path)
        rest = (one for one in finders[finders.index(self) + 1 :] if hasattr(one, "find_spec"))
        found = (one.find_spec(name, path, target) for one in rest)
        spec = next((one for one in found if one is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            with contextlib.suppress(ValueError):  # the module is imported again
                sys.meta_path.remove(self)
            with self.around():
                execute(module)
            self.work()

        loader.exec_module = exec_module
        return spec


def _neighbour(name: str) -> Any:
    """Load a module of this file's folder, which is not on the path."""
    path = os.path.join(_HERE, name + ".py")
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
        self.is_quiet = False
        self._torch: Any = None
        self._patches: Any = None
        self._memory_recorder: Any = None
        self._window: Any = None
        self._host: Any = None
        self.look_at_optimizer: Any = None
        self.compiled_optimizer: Any = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset_in_child)

    def _reset_in_child(self) -> None:
        if self._patches is not None:
            self._patches.end_interrupted()
        self._reset()

    def _forget_parts(self) -> None:
        # Parts that have not ended: time, event, id and code of the frame, id of an optimizer.
        self._input_began: Any = None
        self.forward_began: Any = None
        self._backward_began: Any = None
        self._optimizer_began: Any = None
        self._wait_began: Any = None
        self._call_began: Any = None
        self._gradients_ended: Any = None

    def _reset(self) -> None:
        """Begin a file of its own."""
        self.broken = False
        self._file = -1
        self._waiting: list[Any] = []
        self._write_at = MAX_WAITING
        is_counting = self._memory_recorder is not None and self._memory_recorder.is_counting
        self.count_at_marks(self._memory_recorder.end_phase if is_counting else None)
        self._written: list[Any] = []  # the last ones, for the thread that samples
        self._spare_events: list[Any] = []
        self._flushed_ns = self._memory_ns = 0
        self._main = get_ident()
        self._numbers: dict[int, tuple[Any, int]] = {}
        self._optimizers = itertools.count()
        self._leader = self._others = 0
        self._has_stepped_inside = False
        self._last_place: tuple[Any, int, str] = (None, 0, "")
        self._forget_parts()
        self._on_cuda = self.has_ranks = self.has_window = False
        self._steps = self._waits = 0
        if self._window is not None:
            self._window.reset()

    @contextlib.contextmanager
    def quiet_profiler(self) -> Any:
        """Let torch's profiler log nothing, unless the user has chosen what it logs."""
        if KINETO_VARIABLE in os.environ:
            yield
            return
        self.is_quiet = True
        os.environ[KINETO_VARIABLE] = "99"
        try:
            yield
        finally:
            os.environ.pop(KINETO_VARIABLE, None)

    def after_import(self, name: str, work: Any, around: Any = contextlib.nullcontext) -> None:
        """Do work once a module is imported; what it raises stays out of the user's import."""

        def attempt() -> None:
            try:
                work()
            except Exception as error:
                self.give_up(error)

        if name in sys.modules:
            attempt()
        else:
            sys.meta_path.insert(0, _Finder(name, attempt, around))

    def install(self) -> None:
        if self._patches is None:
            self._make_parts()
        self._patches.install(self.after_import)
        self._host.start(from_now=bool(os.environ.get(STEP_VARIABLE)))

    def _make_parts(self) -> None:
        import torch  # lazy: this process has just imported it

        self._torch = torch
        self._is_grad_enabled = torch.is_grad_enabled
        self._patches = _neighbour("torch_patches").TorchPatches(self, torch)
        atexit.register(self._at_exit)
        # After the line above: functions at exit run in reverse order, and this one can give up.
        holders = _neighbour("memory_holders")
        memory = _neighbour("memory_recorder")
        self._memory_recorder = memory.MemoryRecorder(self, torch, self._patches, holders)
        tracer = _neighbour("window_tracer")
        self._window = tracer.WindowTracer(self, torch, self._patches, self._memory_recorder)
        self._host = _neighbour("host_recorder").HostRecorder(self)

    def uninstall(self) -> None:
        """Take the hooks off torch's and the user's modules, and end the samples of lines."""
        self._patches.uninstall()
        self._host.rest()
        self.look_at_optimizer = None

    def _is_running(self, began: Any) -> bool:
        """Whether the call in which a part began is on the stack.

        Ctrl+C, or the exception of a signal's handler, may have ended it between two lines here.
        """
        frame: Any = sys._getframe(1)
        # Another frame may have the place of one that has ended.
        while frame is not None and (id(frame) != began[2] or frame.f_code is not began[3]):
            frame = frame.f_back
        return frame is not None

    def _is_in_forward(self) -> bool:
        """Whether a module runs; forget one that no hook has ended, as after Ctrl+C."""
        if self.forward_began is not None and not self._is_running(self.forward_began):
            self.forward_began = None
            self._patches.end_interrupted()
        return self.forward_began is not None

    def _is_in_backward(self) -> bool:
        is_known = self._backward_began is None or get_ident() != self._main
        if not is_known and not self._is_running(self._backward_began):
            self._backward_began = None
        return self._backward_began is not None

    def begin_input(self) -> bool:
        """A loader is asked for a batch; whether that is to be recorded."""
        if get_ident() != self._main or (
            self._input_began is not None and self._is_running(self._input_began)
        ):
            return False
        if self.forward_began is not None:
            self._is_in_forward()
        if self.compiled_optimizer is not None:
            self._end_compiled()
        frame = sys._getframe(1)
        self._input_began = (_now(), None, id(frame), frame.f_code)
        return True

    def end_input(self, frame: Any, workers: Any, has_batch: bool) -> None:
        """The loader returns; ``frame`` is what asked it."""
        now, began = _now(), self._input_began
        self._input_began = None
        if began is None:
            return
        code, instruction, place = self._last_place
        if frame.f_code is not code or frame.f_lasti != instruction:
            place = self._place(frame)
        self._add(("i", began[0], now, None, place, workers, has_batch))
        if len(self._waiting) > self._write_at:
            self._write(only_passed=True)

    def _place(self, asked: Any) -> str:
        """Return the line that iterates over a loader: the innermost outside of libraries."""
        frame = asked
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        user = frame or asked
        place = f"{os.path.basename(user.f_code.co_filename)}:{user.f_lineno}"
        place = place.replace("],[", "] [")  # see `_write`
        if user is asked:
            self._last_place = (asked.f_code, asked.f_lasti, place)
        return place

    def end_scaled_step(self) -> None:
        now = _now()
        self._add(("u", now, now, None))

    def begin_call(self) -> bool:
        if self._torch is None or get_ident() != self._main:
            return False
        if self._call_began is not None and self._is_running(self._call_began):
            return False
        frame = sys._getframe(2)
        self._call_began = (_now(), self._event(), id(frame), frame.f_code)
        return True

    def end_call(self) -> None:
        now, began = _now(), self._call_began
        self._call_began = None
        if began is not None:
            events = self._events_since(began[1])
            self._add(("s", began[0], now, events, *self._memory(now)))
            self._count_step(now)

    def begin_forward(self, call: Any) -> bool:
        """Whether an outermost module begins; ``call`` is the frame that calls it."""
        if get_ident() != self._main:
            return False
        # Compiled in place, inside of another module.
        if self.forward_began is not None and self._is_in_forward():
            return False
        # Activations that are computed again.
        if self._backward_began is not None and self._is_in_backward():
            return False
        if self.compiled_optimizer is not None:
            self._end_compiled()
        if not self._steps:
            self._look_at_devices()
        event = self._event() if self._on_cuda else None
        self.forward_began = (_now(), event, id(call), call.f_code)
        return True

    def end_forward(self, module: Any, values: Any, named: Any) -> None:
        now, began = _now(), self.forward_began
        self.forward_began = None
        events = self._events_since(began[1]) if self._on_cuda else None
        tokens, samples = self._patches.amount(values, named)
        grad, trains = self._is_grad_enabled(), module.training
        self._add(("f", began[0], now, events, grad, tokens, samples, trains))
        if len(self._waiting) > self._write_at:
            self._write(only_passed=True)

    def _look_at_devices(self) -> None:
        """Look at what is rarely initialised later than before the first step."""
        self._on_cuda = self._on_cuda or self._torch.cuda.is_initialized()
        distributed = self._torch.distributed
        self.has_ranks = distributed.is_available() and distributed.is_initialized()

    def begin_backward(self, values: Any, named: Any) -> bool:
        """Whether gradients are computed that are no part of a module's output."""
        if self._patches.is_compiling():
            return False
        if get_ident() != self._main:
            return False
        if self._backward_began is not None and self._is_in_backward():
            return False
        if self.forward_began is not None and self._is_in_forward():
            return False
        if self.compiled_optimizer is not None:
            self._end_compiled()
        if not self._steps:
            self._look_at_devices()
        event = self._event() if self._on_cuda else None
        frame = sys._getframe(1)
        self._backward_began = (_now(), event, id(frame), frame.f_code)
        if self.has_ranks:
            self._patches.watch_gradients(values or tuple(named.values()))
        return True

    def end_gradients(self) -> None:
        """The gradients are computed; those of other ranks may be missing."""
        self._gradients_ended = (_now(), self._event())

    def end_backward(self, *_: Any) -> None:
        now, began = _now(), self._backward_began
        self._backward_began = None
        if began is None:
            return
        if self._gradients_ended is not None:
            since, first = self._gradients_ended
            self._gradients_ended = None
            self._add(("c", since, now, self._events_since(first)))
        self._add(("b", began[0], now, self._events_since(began[1]) if self._on_cuda else None))
        if len(self._waiting) > self._write_at:
            self._write(only_passed=True)
        if self._has_stepped_inside:
            self._has_stepped_inside = False
            self._count_step(now)

    def begin_wait(self) -> bool:
        """Whether the process waits for a collective that is to be recorded."""
        if self._waits >= MAX_WAITS or get_ident() != self._main:
            return False
        if self._wait_began is not None and self._is_running(self._wait_began):
            return False
        frame = sys._getframe(2)
        self._wait_began = (_now(), self._event(), id(frame), frame.f_code)
        return True

    def end_wait(self) -> None:
        now, began = _now(), self._wait_began
        self._wait_began = None
        if began is not None:
            self._waits += 1
            self._add(("c", began[0], now, self._events_since(began[1])))

    def begin_optimizer(self, optimizer: Any, values: Any, named: Any) -> None:
        """Torch's hook before the step of an optimizer."""
        if self._patches.is_compiling():
            return
        try:
            if self._backward_began is not None:
                self._is_in_backward()
            if get_ident() != self._main and not self._trains_in_this_thread():
                return
            if self.forward_began is not None:
                self._is_in_forward()
            # One inside of another, as in a wrapper, is a part of it.
            if self._optimizer_began is not None and self._is_running(self._optimizer_began):
                return
            if self.look_at_optimizer is not None:
                self.look_at_optimizer(optimizer)
            event = self._event() if self._on_cuda else None
            frame = sys._getframe(1)
            self._optimizer_began = (_now(), event, id(frame), frame.f_code, id(optimizer))
        except Exception as error:
            self.give_up(error)

    def _trains_in_this_thread(self) -> bool:
        """Whether this thread, which did not import torch, trains.

        In a backward on CUDA the optimizer runs in a thread of autograd.
        """
        if self.broken:
            return False
        if self._backward_began is None:
            if self._steps:
                return False
            self._main = get_ident()
            self._patches.end_interrupted()
            self._forget_parts()
        return True

    def end_optimizer(self, optimizer: Any, values: Any, named: Any) -> None:
        """Torch's hook after the step of an optimizer."""
        if self._patches.is_compiling():
            # Compiled code does this each time, without a break of its graph.
            self.compiled_optimizer = optimizer
            return
        try:
            if self._optimizer_began is not None and self._optimizer_began[4] == id(optimizer):
                self._end_optimizer(optimizer, self._optimizer_began)
        except Exception as error:
            self.give_up(error)

    def _end_optimizer(self, optimizer: Any, began: Any) -> None:
        now, self._optimizer_began = _now(), None
        known, number = self._numbers.get(began[4], (None, 0))
        if known is None or known() is not optimizer:
            # A new optimizer may have the place of one that is gone.
            number = next(self._optimizers)
            self._numbers[began[4]] = (weakref.ref(optimizer), number)
        is_inside = self._backward_began is not None
        events = self._events_since(began[1]) if self._on_cuda else None
        memory = self._memory(now) if self._on_cuda else UNKNOWN_MEMORY
        self._add(("o", began[0], now, events, number, is_inside, *memory))
        if self._call_began is not None:
            return
        if is_inside:
            self._has_stepped_inside = True
        elif number == self._leader or self._is_new_leader(number):
            self._others = 0
            self._count_step(now)

    def _end_compiled(self) -> None:
        """Count a step in compiled code, which ends before the next part: its time is unknown."""
        optimizer, self.compiled_optimizer = self.compiled_optimizer, None
        self._end_optimizer(optimizer, (_now(), None, 0, None, id(optimizer)))

    def _is_new_leader(self, number: int) -> bool:
        """Whether steps are counted by this optimizer from now on, the last one being unused."""
        self._others += 1
        if self._others <= MAX_OTHERS + 4 * len(self._numbers):
            return False
        self._leader = number
        return True

    def _count_step(self, now: int) -> None:
        self._steps += 1
        self._waits = 0
        is_due = now - self._flushed_ns >= FLUSH_NS
        if is_due:
            self._flushed_ns = now
            self._look_at_devices()
            self._write(only_passed=True)
        if self.has_window:
            self._window.end_step(self._steps)
        if is_due:
            self._window.look()

    @property
    def step_count(self) -> int:
        return int(self._steps)

    def add_window(self, began: int, count: int, name: str) -> None:
        """Mark steps that were slowed down, and the file of them."""
        self._add(("w", began, _now(), None, count, name))
        self._write(only_passed=True)

    @staticmethod
    def number_in(text: Any) -> Any:
        return int(text) if text is not None and text.isdecimal() else None

    def make_way(self, profiler: Any) -> None:
        """The user's profiler is about to start: end a window, with the steps that it has."""
        self._window.make_way(profiler)

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
            self.give_up(error)
            return None
        return event

    def _memory(self, now: int) -> tuple[Any, Any, Any]:
        if not self._on_cuda or now - self._memory_ns < MEMORY_NS:
            return UNKNOWN_MEMORY
        self._memory_ns = now
        facts = self._torch.cuda.memory.memory_stats_as_nested_dict()
        held, reserved = facts["allocated_bytes"]["all"], facts["reserved_bytes"]["all"]
        return held["current"], held["peak"], reserved["current"]

    def _events_since(self, first: Any) -> Any:
        """Return the event and one that is recorded now; None without either."""
        last = self._event() if first is not None else None
        return None if last is None else (first, last)

    def count_at_marks(self, count: Any) -> None:
        """Call ``count`` with the kind of each mark from now on; with None, do so no more."""
        append = self._waiting.append

        def add_and_count(mark: Any) -> None:
            append(mark)
            count(mark[0])

        # Without a function of Python in between, which each mark would pay for.
        self._add: Any = append if count is None else add_and_count

    def recent_marks(self) -> list[Any]:
        return [*self._written, *self._waiting[-RECENT:]]

    def _write(self, *, only_passed: bool) -> None:
        """Write the marks whose events have passed."""
        marks = self._waiting[:]
        if self._on_cuda:
            marks = self._with_device_times(marks, only_passed=only_passed)
        if marks:
            self._written = marks[-RECENT:]
            del self._waiting[: len(marks)]
        # With marks left, those whose events have not passed, the next try is later.
        self._write_at = len(self._waiting) + MAX_WAITING
        if marks:
            # One call of the encoder is much cheaper than one for each mark.
            lines = _encode(marks)[1:-1].replace("],[", "]\n[") + "\n"
            try:
                os.write(self._open(), lines.encode())
            except OSError:  # a full disk, a deleted folder: the job goes on without marks
                self._file = -1

    def _with_device_times(self, waiting: list[Any], *, only_passed: bool) -> list[Any]:
        marks = []
        for mark in waiting:
            events, device_ns = mark[3], None
            if events is not None:
                first, last = events
                try:
                    if last.query():
                        device_ns = round(1e6 * first.elapsed_time(last))
                        self._spare_events += events
                    elif only_passed:
                        break
                except RuntimeError:  # after a fault of the device its times stay unknown
                    pass
            marks.append([*mark[:3], device_ns, *mark[4:]])
        return marks

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
            "rank": self.number_in(environ.get("RANK")),
            "world_size": self.number_in(environ.get("WORLD_SIZE")),
            "python": sys.version.split()[0],
            "torch": str(getattr(torch, "__version__", "")),
            "program": sys.argv[0] if sys.argv else "",
            "epoch_ns": time.time_ns() - time.monotonic_ns(),
            "device": "cpu",
        }
        if self._on_cuda:
            index = torch.cuda.current_device()
            facts["device"] = f"cuda:{index}"
            facts["device_name"] = torch.cuda.get_device_name(index)
        return facts

    def give_up(self, error: Exception, why: str = "") -> None:
        """Record nothing more: an error of this file stays out of the user's code.

        One that the user's code raised here, in the handler of a signal, goes its way.
        """
        handlers = (signal.getsignal(number) for number in signal.valid_signals())
        codes = {getattr(getattr(one, "__func__", one), "__code__", None) for one in handlers}
        if any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise error
        self.broken, self._main = True, -1
        self._waiting.append(("error", why or repr(error), None, None))
        if self._patches is not None:
            self._patches.let_go()
        if self._window is not None:
            self._window.cut()
        self._write(only_passed=False)

    def _at_exit(self) -> None:
        if self.compiled_optimizer is not None:
            self._end_compiled()
        self._window.cut()  # a profiler with stacks that runs when Python ends waits for it forever
        self._write(only_passed=False)


def _is_library(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith("<frozen")
