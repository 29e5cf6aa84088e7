"""The hooks and patches of torch by which `step_recorder` sees a process train.

Like that file, this one runs inside of the user's process, with the standard library only, in the
syntax of Python 3.8. Modules and optimizers have hooks. Where torch has none, its function is
replaced by one that calls it: ``torch.autograd.backward`` and ``grad``, ``__next__`` of loaders,
the update of a gradient scaler, compiling in place and copies of a module, ``Work.wait`` of
``torch.distributed``, the making of `DistributedDataParallel`, and the start of profilers.
Exceptions lose the line of the replacement, so that tracebacks are those of torch. Private members
of torch are used here alone, but for what `memory_holders` reads of graphs; a test fails when one
is gone.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

LOADER_MODULES = (
    "torch.utils.data.dataloader",
    "torchdata.stateful_dataloader.stateful_dataloader",
)
MAX_INPUTS = 100
MAX_MODULES = 1000
"""Outermost modules whose hooks are kept."""


def call_after_gradients(torch: Any, work: Any) -> None:
    """Let torch call this once the backward that runs has computed all gradients.

    What was queued later runs after it: `DistributedDataParallel` then waits for its collectives.
    """
    torch.autograd.Variable._execution_engine.queue_callback(work)


def is_profiling(torch: Any) -> bool:
    """Whether a profiler of torch runs: there can be one only."""
    return bool(torch.autograd._profiler_enabled())


class ModuleHook:
    """A hook of torch that goes on and off again without being registered each time.

    Attributes:
        hooks: The dictionary of the module that it is in while it is on.
    """

    def __init__(self, handle: Any) -> None:
        self._number = handle.id
        self.hooks = handle.hooks_dict_ref()
        self._call = self.hooks[self._number]
        others = [ref() for ref in handle.extra_dict_ref]
        self._flags = tuple(one for one in others if self._number in one)

    def put_on(self) -> None:
        number = self._number
        self.hooks[number] = self._call
        for flags in self._flags:
            flags[number] = True

    def take_off(self) -> None:
        number = self._number
        self.hooks.pop(number, None)
        for flags in self._flags:
            flags.pop(number, None)

    def take_off_after_call(self) -> None:
        """Take it off, unless torch iterates over the hooks, as it does after an exception.

        A hook that the user's forward has added would then come next. This one stays until the
        module is called again.
        """
        if sys.exc_info()[0] is None or next(reversed(self.hooks), None) == self._number:
            self.take_off()

    def leave_out(self, state: dict[str, Any]) -> None:
        """Take a hook that is on out of a copy of the module's attributes."""
        if self._number in self.hooks:
            own = {id(self.hooks), *map(id, self._flags)}
            for name, value in state.items():
                if id(value) in own:
                    state[name] = value.copy()
                    del state[name][self._number]


class TorchPatches:
    """Calls a recorder when a part of a step begins and when it ends."""

    def __init__(self, recorder: Any, torch: Any) -> None:
        self._recorder = recorder
        self._torch = torch
        self.is_compiling = torch.compiler.is_compiling
        self._has_modes = getattr(torch._C, "_is_torch_function_mode_enabled", lambda: True)
        # In its context attributes of tensors call no code of the user.
        self.plain_tensors: Any = torch._C.DisableTorchFunction
        self._is_tracing = getattr(torch._C, "_get_tracing_state", lambda: None)
        self._undo: list[Any] = []
        self._optimizer_hooks: list[Any] = []
        self._module_hooks: dict[int, ModuleHook] = {}
        self._module_hook: Any = None

    def install(self, after_import: Any) -> None:
        torch, recorder = self._torch, self._recorder
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        self._optimizer_hooks += [
            optimizer.register_optimizer_step_pre_hook(recorder.begin_optimizer),
            optimizer.register_optimizer_step_post_hook(recorder.end_optimizer),
        ]
        register = torch.nn.modules.module.register_module_forward_pre_hook
        self.outermost_hook = ModuleHook(register(self._before_forward))
        self._undo.append(self.outermost_hook.take_off)
        for name in LOADER_MODULES:
            after_import(name, functools.partial(self._watch_iterators, name))
        for name in ("backward", "grad"):
            self._surround(torch.autograd, name, recorder.begin_backward, recorder.end_backward)
        self._watch_scalers()
        self._watch_copies()
        self._watch_compiled()
        if torch.distributed.is_available():
            self._watch_collectives()
        after_import("torch.profiler.profiler", self._watch_profilers)

    def around_profilers(self, begin: Any, end: Any) -> bool:
        """Call ``begin`` before a profiler starts and ``end`` after it has stopped.

        Returns False, and does nothing, in a torch without the functions that all profilers call.
        """
        profiler: Any = self._torch.autograd.profiler
        names = ("_run_on_profiler_start", "_run_on_profiler_stop")
        start, stop = (getattr(profiler, name, None) for name in names)
        if start is None or stop is None:
            return False

        def _run_on_profiler_start() -> None:
            begin()
            start()

        def _run_on_profiler_stop() -> None:
            stop()
            end()

        self._replace(profiler, names[0], _run_on_profiler_start)
        self._replace(profiler, names[1], _run_on_profiler_stop)
        return True

    def watch_parallel(self, keep: Any) -> None:
        """Call ``keep`` with each module that averages gradients of several processes.

        A hook of modules would find it, too, but torch.compile traces such hooks into its graphs.
        """
        parallel: Any = self._torch.nn.parallel.DistributedDataParallel
        make = parallel.__init__

        def __init__(module: Any, *values: Any, **named: Any) -> None:
            try:
                make(module, *values, **named)
            except BaseException as error:
                _leave_out_this_frame(error)
                raise
            keep(module)

        self._replace(parallel, "__init__", __init__)

    def begin_history(self, most: int) -> bool:
        """Let CUDA's allocator keep requests with their lines, unless the user's code does so."""
        torch = self._torch
        is_recorded = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not torch.cuda.is_initialized() or is_recorded is None or is_recorded():
            return False
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=most)
        return True

    def end_history(self) -> Any:
        snapshot = self._torch.cuda.memory._snapshot()
        self._torch.cuda.memory._record_memory_history(None)
        return snapshot

    def free_workspaces(self, device: str) -> Any:
        """Free the workspaces of cuBLAS, which no step needs any more; return their bytes."""
        torch = self._torch
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            return None
        before = torch.cuda.memory_allocated(device)
        clear()
        return before - torch.cuda.memory_allocated(device)

    def is_profiling(self) -> bool:
        return is_profiling(self._torch)

    def let_go(self) -> None:
        """Take everything off but the hooks of optimizers, over which torch may iterate now."""
        while self._undo:
            self._undo.pop()()
        if self._module_hook is not None:
            self._module_hook.take_off_after_call()

    def uninstall(self) -> None:
        """Take the hooks off torch's and the user's modules."""
        self.let_go()
        while self._optimizer_hooks:
            self._optimizer_hooks.pop().remove()

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        """Let the owner have this function until `uninstall`, unless it has another one by then."""
        before = getattr(owner, name)
        functools.update_wrapper(function, before)
        setattr(owner, name, function)

        def put_back() -> None:
            if vars(owner).get(name) is function:
                setattr(owner, name, before)

        self._undo.append(put_back)

    def _surround(self, owner: Any, name: str, begin: Any, end: Any = None) -> None:
        call = surrounded(self._recorder, getattr(owner, name), begin, end)
        self._replace(owner, name, call)

    def _watch_iterators(self, module: str) -> None:
        """Watch the iterators of a module's loaders: its classes that have ``__next__``."""
        for one in list(vars(sys.modules[module]).values()):
            if isinstance(one, type) and one.__module__ == module and "__next__" in vars(one):
                self._watch_iterator(one)

    def _watch_iterator(self, kind: Any) -> None:
        recorder, advance = self._recorder, kind.__next__

        def __next__(iterator: Any) -> Any:
            is_asked = recorder.begin_input()
            has_batch = True
            try:
                return advance(iterator)
            except BaseException as error:
                has_batch = False
                _leave_out_this_frame(error)
                raise
            finally:
                if is_asked:
                    try:
                        workers = getattr(iterator, "_num_workers", None)
                        recorder.end_input(sys._getframe(1), workers, has_batch)
                    except Exception as error:
                        recorder.give_up(error)

        self._replace(kind, "__next__", __next__)

    def _watch_profilers(self) -> None:
        """Let the recorder end its own profiler before the user starts one: torch has one only."""
        for profiler, name in (
            (sys.modules["torch.profiler.profiler"].profile, "start"),
            (self._torch.autograd.profiler.profile, "__enter__"),
        ):
            self._surround(profiler, name, lambda values, _: self._recorder.make_way(values[0]))

    def _watch_scalers(self) -> None:
        scaler: Any = self._torch.amp.GradScaler
        self._surround(scaler, "update", lambda *_: self._recorder.end_scaled_step())

    def _before_forward(self, module: Any, values: Any) -> None:
        if self.is_compiling():
            return
        try:
            # The frame of the call, which runs its hooks in a function of its own.
            if not self._recorder.begin_forward(sys._getframe(1).f_back):
                return
            # Those inside of it run without any hook.
            self.outermost_hook.take_off()
            hook = self._module_hooks.get(id(module))
            if hook is not None and hook.hooks is module._forward_hooks:
                hook.put_on()
            else:
                handle = self._torch.nn.Module.register_forward_hook(
                    module, self._after_forward, with_kwargs=True, always_call=True
                )
                if len(self._module_hooks) >= MAX_MODULES:
                    self._module_hooks.clear()
                hook = self._module_hooks[id(module)] = ModuleHook(handle)
            self._module_hook = hook
        except Exception as error:
            self._recorder.give_up(error)

    def _after_forward(self, module: Any, values: Any, *more: Any) -> None:
        began, frame = self._recorder.forward_began, sys._getframe(1)
        # A module may call itself, and another thread may call it, too.
        if began is None or (id(frame.f_back) != began[2] and id(frame) != began[2]):
            return
        try:
            self.outermost_hook.put_on()
            self._module_hook.take_off_after_call()
            self._recorder.end_forward(module, values, more[0])
        except Exception as error:
            self._recorder.give_up(error)

    def end_interrupted(self) -> None:
        """Watch for an outermost module again: the last one has not ended."""
        if self._module_hook is not None:
            self._module_hook.take_off()
            self.outermost_hook.put_on()

    def amount(self, values: Any, named: Any) -> tuple[Any, Any]:
        """Tokens, of integers in two dimensions, and samples of the first tensor with a dimension.

        It is an argument, or in a sequence or mapping that is one. No code of the user runs; where
        the size of a tensor is symbolic, or would become a part of a traced graph, it is None.
        """
        tensor = self._torch.Tensor
        queue = [*values, *named.values()]
        for one in queue:  # it grows in the loop
            kind = type(one)
            if tensor in kind.__mro__:
                if self._is_tracing() is not None:
                    break
                if kind is tensor and not self._has_modes():
                    shape = one.shape
                    is_text = len(shape) == 2 and not one.is_floating_point()
                else:
                    with self.plain_tensors():
                        shape = one.shape
                        is_text = len(shape) == 2 and not one.is_floating_point()
                if not shape:
                    continue
                samples, length = shape[0], shape[1] if is_text else 1
                if type(samples) is int and type(length) is int:
                    return (samples * length if is_text else None), samples
                break
            if len(queue) > MAX_INPUTS:
                break
            if issubclass(kind, dict):
                queue += dict.values(one)
            elif issubclass(kind, (tuple, list)):
                base: Any = tuple if issubclass(kind, tuple) else list
                queue += base.__getitem__(one, slice(None))
            elif hasattr(kind, "__dataclass_fields__"):
                names = kind.__dataclass_fields__
                queue += [object.__getattribute__(one, name) for name in names]
        return None, None

    def _watch_copies(self) -> None:
        """Leave the hook of a module that runs, or was interrupted, out of copies and pickles."""
        get_state = vars(self._torch.nn.Module).get("__getstate__")
        if get_state is None:
            return

        def __getstate__(module: Any) -> Any:
            state = get_state(module)
            hook = self._module_hooks.get(id(module))
            if hook is not None:
                hook.leave_out(state)
            return state

        self._replace(self._torch.nn.Module, "__getstate__", __getstate__)

    def _watch_compiled(self) -> None:
        """Watch modules that are compiled in place: they run without torch's global hooks.

        What compiling adds to a module is in no copy and no pickle of it.
        """
        module: Any = self._torch.nn.Module
        compile_in_place = module.compile

        def compile_and_watch(module_: Any, *values: Any, **named: Any) -> None:
            before = dict(vars(module_))
            try:
                compile_in_place(module_, *values, **named)
            except BaseException as error:
                _leave_out_this_frame(error)
                raise
            for name, value in list(vars(module_).items()):
                if callable(value) and before.get(name) is not value:
                    setattr(module_, name, self._watched_call(module_, value))

        self._replace(module, "compile", compile_and_watch)

    def _watched_call(self, module: Any, run: Any) -> Any:
        def begin(*_: Any) -> bool:
            is_outermost = not self.is_compiling() and self._recorder.begin_forward(
                sys._getframe(1)
            )
            if is_outermost:
                self.outermost_hook.take_off()
            return is_outermost

        def end(inputs: Any, more: Any) -> None:
            self.outermost_hook.put_on()
            if self._recorder.forward_began is not None:
                self._recorder.end_forward(module, inputs, more)

        return surrounded(self._recorder, run, begin, end)

    def watch_gradients(self, values: Any) -> None:
        """Tell the recorder when the gradients of this loss are computed."""
        first = values[0] if values else None
        if isinstance(first, (tuple, list)):
            first = first[0] if first else None
        node = getattr(first, "grad_fn", None)
        if node is not None:
            node.register_prehook(self._before_gradients)

    def _before_gradients(self, gradients: Any) -> None:
        call_after_gradients(self._torch, self._recorder.end_gradients)

    def _watch_collectives(self) -> None:
        self._surround(
            self._torch.distributed.Work,
            "wait",
            lambda *_: not self.is_compiling() and self._recorder.begin_wait(),
            lambda *_: self._recorder.end_wait(),
        )


def surrounded(recorder: Any, call: Any, begin: Any, end: Any = None) -> Any:
    """Return the call after ``begin``, and before ``end`` if that returned true.

    Both get a tuple of the values and a dictionary of the named ones.
    """

    def call_and_mark(*values: Any, **named: Any) -> Any:
        has_begun = False
        try:
            has_begun = begin(values, named)
        except Exception as error:
            recorder.give_up(error)
        try:
            return call(*values, **named)
        except BaseException as error:
            _leave_out_this_frame(error)
            raise
        finally:
            if has_begun and end is not None:
                try:
                    end(values, named)
                except Exception as error:
                    recorder.give_up(error)

    return call_and_mark


def count_calls(recorder: Any, module: str, function: str) -> None:
    """Let each call of the function that the user named be a step."""
    *owners, name = function.split(".")
    owner: Any = sys.modules[module]
    for one in owners:
        owner = getattr(owner, one)
    kind: Any = type(inspect.getattr_static(owner, name))
    call = getattr(owner, name)
    call_and_mark = functools.wraps(call)(
        surrounded(recorder, call, lambda *_: recorder.begin_call(), lambda *_: recorder.end_call())
    )
    # A class method is bound already.
    is_bound = owners and kind in (staticmethod, classmethod)
    setattr(owner, name, staticmethod(call_and_mark) if is_bound else call_and_mark)


def _leave_out_this_frame(error: BaseException) -> None:
    """Take the caller's line off a traceback; from Python 3.11 a bare ``raise`` adds none."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
