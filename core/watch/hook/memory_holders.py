"""Finds who holds the tensors of a process: modules, optimizers, graphs and variables.

This file runs inside of the user's process, as `step_recorder` does: standard library and torch,
syntax of Python 3.8. Storages are counted once. Their holders are found by the garbage collector,
from the variables of frames and of the user's modules, and in the graphs of live tensors, from
which nothing is computed.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import gc
import inspect
import itertools
import linecache
import os
import re
import sys
import types
from typing import Any

MAX_VISITED = 200_000
"""Objects in which variables are searched for tensors."""
MAX_ITEMS = 100_000
"""Items of one container that are searched."""
MAX_ROWS = 4_000
FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')
ADDS = r"\s*(\.(append|appendleft|add|extend|insert|update|setdefault)\(|\[.*\]\s*=[^=]|\+=)"
SETS = r"((,\s*\w+)*\s*(:[^=()]+)?=[^=]|.*\bin\b.*:\s*$)"
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
SKIPPED = (
    *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType),
    *(str, bytes, int, float, bool, complex, type(None)),
)
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = (
    *(os.sep + name + os.sep for name in ("site-packages", "dist-packages")),
    os.path.dirname(os.__file__) + os.sep,
    "<frozen",
    _HERE,
)


class Holders:
    """Tensors of the process, their names and their owners."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kinds: dict[type, str] = {}
        self._tensors: dict[int, Any] = {}
        self._modules: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._paths: dict[int, str] = {}
        self._found: dict[tuple[str, int], tuple[int, Any]] = {}

    def search(self, frames: list[Any]) -> None:
        """Find all tensors, modules and optimizers; variables of frames and modules name them.

        The shortest way to a tensor names it; of equal ones that of the outermost frame of the
        user's code, then of libraries.
        """
        for one in gc.get_objects():
            self._note(one)
        queue: Any = collections.deque()
        for frame in sorted(reversed(frames), key=lambda one: not is_users(_file_of(one))):
            variables = frame.f_locals
            place = _Place(_file_of(frame), function_name(frame, variables), _lines_of(frame))
            queue.extend((name, one, place) for name, one in variables.items())
            _forget(frame, variables)
        for module in [*sys.modules.values()]:
            file = getattr(module, "__file__", None)
            if isinstance(module, types.ModuleType) and isinstance(file, str) and is_users(file):
                place = _Place(file, "<module>", None)
                queue.extend((name, one, place) for name, one in [*vars(module).items()])
        self._name(queue)

    def rows(self, device: str) -> list[list[Any]]:
        """Return ``[category, module, bytes, storages, stack…]`` of a device, largest first."""
        with self._torch._C.DisableTorchFunction():
            self._take_owned()
            self._take_graphs()
            for key, one in self._tensors.items():
                kind = "other tensors" if one.grad_fn is None else "outputs"
                self._take(one, kind, "", self._names.get(key, ()))
        sums: dict[Any, list[int]] = {}
        for (place, _), (size, row) in self._found.items():
            if place == device:
                total = sums.setdefault(row, [0, 0])
                total[0] += size
                total[1] += 1
        rows = [[row[0], row[1], *total, *row[2]] for row, total in sums.items()]
        rows.sort(key=lambda row: -row[2])
        return rows[:MAX_ROWS] + self._smaller(rows[MAX_ROWS:])

    @staticmethod
    def _smaller(rows: list[list[Any]]) -> list[list[Any]]:
        sums: dict[str, list[int]] = {}
        for category, _, size, count, *_ in rows:
            total = sums.setdefault(category, [0, 0])
            total[0] += size
            total[1] += count
        return [[category, "", *total] for category, total in sums.items()]

    def _note(self, one: Any) -> str:
        """Keep a tensor, module or optimizer; return which of them it is, else ""."""
        kind = self._kinds.get(type(one))
        if kind is None:
            torch, bases = self._torch, type(one).__mro__
            kind = (
                "tensor"
                if torch.Tensor in bases
                else "module"
                if torch.nn.Module in bases
                else "optimizer"
                if torch.optim.Optimizer in bases
                else ""
            )
            self._kinds[type(one)] = kind
        if kind == "tensor":
            self._tensors.setdefault(id(one), one)
        elif kind == "module":
            self._modules.setdefault(id(one), one)
        elif kind == "optimizer":
            self._optimizers.setdefault(id(one), one)
        return kind

    def _name(self, queue: Any) -> None:
        visited: set[int] = set()
        while queue and len(visited) < MAX_VISITED:
            label, one, place = queue.popleft()
            if isinstance(one, SKIPPED) or id(one) in visited or not gc.is_tracked(one):
                continue
            visited.add(id(one))
            if self._note(one) == "tensor":
                self._names[id(one)] = place.words(label[:80])
            with contextlib.suppress(Exception):  # another thread may change the container
                children = _children(label, one, id(one) in self._modules)
                queue.extend((name, child, place) for name, child in children)

    def _take_owned(self) -> None:
        """Take parameters, gradients, optimizer state and buffers, in this order."""
        owned = [*self._owned("_parameters")]
        for module, _, one in owned:
            self._paths.setdefault(id(one), module)
        for module, name, one in owned:
            self._take(one, "parameters", module, (name,))
        leaves = [one for one in self._tensors.values() if one.is_leaf and one.requires_grad]
        for one in leaves:
            if one.grad is not None:
                place = () if id(one) in self._paths else self._names.get(id(one), ())
                self._take(one.grad, "gradients", self._paths.get(id(one), ""), place)
        for optimizer in self._optimizers.values():
            name = type(optimizer).__name__
            for parameter, state in [*optimizer.state.items()]:
                path = self._paths.get(id(parameter), "")
                for label, one in _inside(state, self._torch.Tensor):
                    self._take(one, "optimizer state", path, (f"{name} {label}".strip(),))
            for group in optimizer.param_groups:
                for one in group["params"]:
                    self._take(one, "parameters", "", (f"parameters of {name}",))
        for module, name, one in self._owned("_buffers"):
            self._take(one, "buffers", module, (name,))

    def _owned(self, kind: str) -> Any:
        """Yield module path, name and tensor of all parameters or buffers."""
        inner = {
            id(one) for module in self._modules.values() for one in _modules_in(module).values()
        }
        roots = [one for key, one in self._modules.items() if key not in inner]
        roots = [one for one in roots if any(_own(part, "_parameters") for _, part in _walk(one))]
        seen: dict[str, int] = {}
        for root in roots:
            name = type(root).__name__
            seen[name] = seen.get(name, 0) + 1
            prefix = "" if len(roots) == 1 else name if seen[name] == 1 else f"{name}#{seen[name]}"
            for path, module in _walk(root):
                path = ".".join(filter(None, (prefix, path)))
                for key, one in _own(module, kind):
                    yield path, key, one

    def _take_graphs(self) -> None:
        """Take what the graphs of live tensors saved for the backward."""
        nodes: Any = {}
        # Named ones first: what a variable holds is not also held by a tensor without a name.
        for key in sorted(self._tensors, key=lambda key: key not in self._names):
            queue = [one for one in (self._tensors[key].grad_fn,) if one is not None]
            while queue:
                node = queue.pop()
                if node not in nodes:
                    nodes[node] = key
                    queue.extend(after for after, _ in node.next_functions if after is not None)
        places: dict[Any, str] = {}
        attributes: dict[type, list[str]] = {}
        for node, key in nodes.items():
            kind = type(node)
            if kind not in attributes:
                attributes[kind] = [name for name in dir(node) if name.startswith("_raw_saved_")]
            for name in attributes[kind]:
                for one in _saved(node, name, self._torch.Tensor):
                    self._take_saved(one, node, places, key)

    def _take_saved(self, one: Any, node: Any, places: Any, root: int) -> None:
        # What a variable holds and no operator computed is an input; a mask has no variable.
        is_input = one.is_leaf and any(key in self._named_storages for key, _ in _storages(one))
        if is_input:
            self._take(one, "inputs", "", self._named_storages[next(_storages(one))[0]])
            return
        held = " at ".join(self._names.get(root, ()))
        line = _line_in(node.metadata.get("traceback_"))
        place = (node.name(), *([line] if line else []), *([f"held by {held}"] if held else []))
        self._take(one, "activations", self._module_of(node, places), place)

    @property
    def _named_storages(self) -> dict[Any, tuple[str, ...]]:
        if "_by_storage" not in self.__dict__:
            self._by_storage = {
                key: name
                for number, name in self._names.items()
                if self._tensors[number].is_leaf
                for key, _ in _storages(self._tensors[number])
            }
        return self._by_storage

    def _module_of(self, node: Any, places: Any) -> str:
        """Return the module whose parameters an operator uses, else that of its first input."""
        way = []
        while node is not None and node not in places:
            way.append(node)
            paths = [*self._parameters_of(node)]
            if paths:
                places[node] = _common(paths)
                break
            node = next((after for after, _ in node.next_functions if after is not None), None)
        module = places.get(node, "") if node is not None else ""
        for one in way:
            places[one] = module
        return module

    def _parameters_of(self, node: Any) -> Any:
        for after, _ in node.next_functions:
            # A cast or a transposition is between the operator and its parameter.
            for _ in range(3):
                if after is None or len(after.next_functions) != 1:
                    break
                after = after.next_functions[0][0]
            variable = getattr(after, "variable", None)
            if variable is not None and id(variable) in self._paths:
                yield self._paths[id(variable)]

    def _take(self, one: Any, category: str, module: str, place: tuple[str, ...]) -> None:
        for key, size in _storages(one):
            self._found.setdefault(key, (size, (category, module, place)))


class _Place:
    """A frame or module whose variables hold tensors; ``lines`` are its own, None if unknown."""

    def __init__(self, file: str, function: str, lines: Any) -> None:
        self._file = file
        self._function = function
        self._lines = lines
        self._known: dict[str, tuple[str, ...]] = {}

    def words(self, label: str) -> tuple[str, ...]:
        """The variable, and the line that adds to it or sets it, else the function that has it."""
        if label not in self._known:
            # An attribute may be set in any function.
            line = _line_of(self._file, label, None if "." in label else self._lines)
            file = os.path.basename(self._file)
            at = f"{file}:{line}" if line else f"{file} {self._function}"
            self._known[label] = (label, at)
        return self._known[label]


def _storages(tensor: Any) -> Any:
    """Yield ``(device, address), bytes`` of the storages of a tensor."""
    queue = [tensor]
    while queue:
        one = queue.pop()
        with contextlib.suppress(Exception):  # tensors without storage: fake, opaque, of functorch
            if hasattr(type(one), "__tensor_flatten__"):
                queue.extend(getattr(one, name) for name in one.__tensor_flatten__()[0])
            elif one.is_sparse:
                queue.extend((one._indices(), one._values()))
            elif one.device.type != "meta":
                storage = one.untyped_storage()
                if storage.nbytes() and storage.data_ptr():
                    yield (str(one.device), storage.data_ptr()), storage.nbytes()


def _saved(node: Any, name: str, tensor: type) -> Any:
    """Yield the tensors of an attribute of a node, without running hooks that unpack them."""
    with contextlib.suppress(Exception):  # freed, or changed in place since
        raw = getattr(node, name)
        several = raw if isinstance(raw, (tuple, list)) else (raw,)
        if any(getattr(one, "unpack_hook", None) is not None for one in several):
            yield from (one for _, one in _inside([saved.data for saved in several], tensor))
            return
        plain = "saved_tensors" if name == "_raw_saved_tensors" else name[len("_raw") :]
        yield from (one for _, one in _inside(getattr(node, plain), tensor))


def _inside(value: Any, tensor: type, label: str = "") -> Any:
    """Yield label and tensor of a nest of mappings and sequences."""
    if isinstance(value, tensor):
        yield label, value
    elif isinstance(value, dict):
        for key, one in [*value.items()]:
            yield from _inside(one, tensor, label or str(key))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _inside(one, tensor, label)


def _children(label: str, one: Any, is_module: bool) -> list[tuple[str, Any]]:
    kind = type(one)
    many = label if label.endswith("[]") else label + "[]"
    if isinstance(one, dict):
        items = itertools.islice(dict.items(one), MAX_ITEMS)
        return [
            (f"{label}[{key!r}]" if isinstance(key, str) else many, item) for key, item in items
        ]
    if kind in (list, tuple, set, frozenset, collections.deque):
        return [(many, item) for item in itertools.islice(one, MAX_ITEMS)]
    if isinstance(one, types.FunctionType):
        cells = one.__closure__ or ()
        names = one.__code__.co_freevars[: len(cells)]
        return [(name, cells[place].cell_contents) for place, name in enumerate(names)]
    if isinstance(one, types.MethodType):
        return [(label, one.__self__)]
    # No code of the user runs: neither a property nor a method of an attribute.
    attributes = object.__getattribute__(one, "__dict__") if kind.__dictoffset__ else None
    found: list[tuple[str, Any]] = []
    if isinstance(attributes, dict):
        for key, value in [*attributes.items()]:
            if is_module and key in ("_parameters", "_buffers", "_modules"):
                found += [(f"{label}.{name}", item) for name, item in value.items()]
            else:
                found.append((f"{label}.{key}", value))
    rest = (item for item in gc.get_referents(one) if item is not attributes)
    return found + [(label, item) for item in itertools.islice(rest, MAX_ITEMS)]


def _modules_in(module: Any) -> Any:
    return {
        name: one for name, one in module.__dict__.get("_modules", {}).items() if one is not None
    }


def _walk(module: Any, path: str = "", depth: int = 0) -> Any:
    """Yield the path and module of a tree, without the parts that wrappers add to paths."""
    yield path, module
    for name, one in _modules_in(module).items() if depth < 64 else ():
        parts = (path,) if name in WRAPPERS else (path, name)
        yield from _walk(one, ".".join(filter(None, parts)), depth + 1)


def _own(module: Any, kind: str) -> list[tuple[str, Any]]:
    return [(name, one) for name, one in module.__dict__.get(kind, {}).items() if one is not None]


def _common(paths: list[str]) -> str:
    folders = [path.replace(".", os.sep) for path in paths]
    return os.path.commonpath(folders).replace(os.sep, ".")


def is_users(file: str) -> bool:
    return bool(file) and not any(part in file for part in _LIBRARIES) and file[0] != "<"


def function_name(frame: Any, variables: Any) -> str:
    """``MLP.forward``; without the class where neither Python nor ``self`` has it."""
    code = frame.f_code
    own = type(variables["self"]).__name__ + "." if "self" in variables else ""
    return str(getattr(code, "co_qualname", own + code.co_name)).replace("<locals>.", "")


def _forget(frame: Any, variables: Any) -> None:
    """Drop the copy of a function's variables that reading them left in the frame.

    Before Python 3.13 it would keep them alive. A copy that the user's code holds is left alone.
    """
    is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13)
    # Held by the frame, the caller, this function and the call below.
    if is_copy and sys.getrefcount(variables) <= 4:
        variables.clear()


def _line_in(text: Any) -> str:
    """The user's innermost line of a traceback that torch kept, as ``train.py:31 forward``."""
    for lines in reversed(text or ()):
        match = FRAME.match(lines)
        if match is not None and is_users(match[1]):
            return f"{os.path.basename(match[1])}:{match[2]} {match[3]}"
    return ""


def _file_of(frame: Any) -> str:
    return str(frame.f_code.co_filename)


def _lines_of(frame: Any) -> set[int]:
    """Lines of a function or module, without those of the functions in it."""
    return {line for _, line in dis.findlinestarts(frame.f_code) if line}


def _line_of(file: str, label: str, among: Any) -> int:
    """Return the only line that adds to a variable, else the first one that sets it; 0 for none.

    Args:
        among: Lines that can set it; None for any.
    """
    word = rf"\b{re.escape(label.split('[')[0].split('.')[-1])}"
    lines = [*enumerate(linecache.getlines(file), 1)]
    if "[" in label:
        adds = [number for number, line in lines if re.search(word + ADDS, line)]
        if len(adds) == 1:
            return adds[0]
    sets = (number for number, line in lines if re.search(word + SETS, line))
    return next((number for number in sets if among is None or number in among), 0)
