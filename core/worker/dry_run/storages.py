"""Accounting of storages without data: their owners and lifetimes, moment by moment."""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]
    GroupName,
    _resolve_process_group,
)
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.core.predict.allocator import GRANULE
from sysbench.core.predict.closed_form import COMMUNICATION, GATHERED, RECEIVED, ROWS
from sysbench.core.predict.dry_run_client import Action, Moment, Product
from sysbench.core.predict.forward import ACTIVATIONS, COPIES, LOGITS, TEMPORARIES
from sysbench.core.predict.requests import BACKWARD_PRODUCT, PRODUCT, STATE, RequestTrace
from sysbench.core.predict.sizes import workspace_bytes
from sysbench.core.record.memory import KEPT, WORKSPACES
from sysbench.core.worker.dry_run.device import math_attention
from sysbench.core.worker.dry_run.operations import (
    RESULTS,
    RESULTS_BEFORE_SCRATCH,
    flops_of,
    hidden_bytes,
    in_kernel_s_layout,
    moved_bytes,
    results_on_device,
    scratch_after,
    scratch_before,
)
from sysbench.core.worker.workloads.stepped_workload import tensors_in

_aten = torch.ops.aten
LOSS = "loss"
UNWRAPPED = ("to_local", "to_original_precision", "tensor_data_names")
"""Attributes of tensors of several ranks, of float8 with its scale, and of blocks with theirs,
which ask again for their parts."""
OF_PARAMETERS = ("clip", "optimizer")
"""Phases that iterate over the parameters."""
PRODUCTS = frozenset({_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten._scaled_mm})
"""Operations of the matrix library. Attention kernels do not use it."""


COLLECTIVES = {
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_reduce": "all-reduce",
    "allreduce_": "all-reduce",
    "all_to_all_single": "all-to-all",
}
"""Kinds of transfers by operator; those of ``fully_shard`` and between stages are no operators."""


def ring_bytes(kind: str, whole_bytes: int, ranks: int) -> int:
    """Bytes that a rank sends: see `SentBytes`."""
    if kind == "send":
        return whole_bytes
    return (2 if kind == "all-reduce" else 1) * whole_bytes * (ranks - 1) // ranks


class Place(NamedTuple):
    """Place in the model: block index from 1, or the name of a part outside the blocks."""

    block: int
    name: str


OUTSIDE = Place(0, "")


@dataclass(slots=True, eq=False)
class Life:
    """A storage: alive at the moments of the half-open interval from ``born`` to ``died``."""

    bytes: int
    category: str
    born: int = 0
    died: int | None = None
    place: Place | None = None
    """Place of a parameter, its gradient or its state; else None."""
    number: int = -1
    """Number of its request in the trace."""


class BuildTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage until the step's tracker takes it over.

    Attributes:
        live_bytes: Bytes of all live storages.
        peak_bytes: The most of them since it was last set.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = RequestTrace()
        self._numbers: dict[int, int] = {}  # live storages by address
        self._storages: dict[int, weakref.ref[Any]] = {}
        self.live_bytes = self.peak_bytes = 0
        self._results = RESULTS
        self._copies: list[tuple[int, int]] = []
        self._made_from: list[tuple[int, int]] = []

    def number_of(self, address: int) -> int | None:
        """Number of a live storage; None if unknown, for example on the host."""
        return self._numbers.get(address)

    def storages(self) -> list[Any]:
        """The live storages that no other tracker has taken over."""
        found = (self._storages[address]() for address in self._numbers)
        return [storage for storage in found if storage is not None]

    def hand_over(self, address: int, block: int) -> int | None:
        """Number of a storage that another tracker takes over; None if unknown."""
        number = self._numbers.pop(address, None)
        if number is not None and number >= 0:
            self.trace.blocks[number] = block
        return number

    def drop(self) -> None:
        """Forget all requests; who owns a storage later requests it then."""
        self.trace = RequestTrace()
        for kept in (self._numbers, self._copies, self._made_from):
            kept.clear()

    def label_the_rest(self) -> None:
        """Assign freed storages to the block that they were copied to or made from."""
        blocks = self.trace.blocks
        for source, copy in self._copies:
            blocks[source] = blocks[copy]
        for source, number in self._made_from:
            blocks[number] = blocks[number] or blocks[source]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # so that dynamo's code runs under this mode

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if _has_parts(types):
            return NotImplemented
        result = self._results.of(func, args, kwargs or {})
        for one in (leaf for leaf in tensors_in(result) if leaf.is_meta):
            storage = one.untyped_storage()
            address = storage._cdata
            if address not in self._numbers:
                number = self._numbers[address] = self.trace.request(storage.nbytes())
                self._storages[address] = weakref.ref(storage)
                self.live_bytes += storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                weakref.finalize(storage, self._end, address, storage.nbytes()).atexit = False
                self._note_source(func, args, number)
        return result

    def _note_source(self, func: Any, args: Sequence[Any], number: int) -> None:
        first = args[0] if args and isinstance(args[0], Tensor) else None
        source = None if first is None else self.number_of(first.untyped_storage()._cdata)
        if source is not None and source >= 0 <= number:
            (self._copies if func.overloadpacket is _aten._to_copy else self._made_from).append(
                (source, number)
            )

    def _end(self, address: int, count: int) -> None:
        number = self._numbers.pop(address, None)
        self._storages.pop(address, None)
        self.live_bytes -= count
        if number is not None:
            self.trace.give_back(number)


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Accounts for storages by the phase and place that create them.

    A moment is the end of an operation that allocated a storage: live bytes peak only there. A
    backward operation belongs to the place whose forward created the graph node, an optimizer
    operation to the place of its parameter.

    Args:
        built: Tracker of the model's build; its storages are taken over.
        capability: See `closed_form.predict`.

    Attributes:
        saved_bytes: Bytes alive after forward and loss, without residents.
        trace: Every request and return of storage, including the build.
        products: Number of calls of each product by phase.
        moved: Bytes that all other operations read and write, by phase.
        uncounted: Names of operations that may multiply matrices and are in no product.
        calls, sent: Number of transfers to other ranks and their bytes, by kind.
        actions: See `DryRun`.
    """

    def __init__(self, built: BuildTracker, capability: str | None, *, on_cuda: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = ""
        self._on_cuda = on_cuda
        self._workspace = workspace_bytes(capability) if on_cuda else 0
        self.saved_bytes = 0
        self.trace = built.trace
        self._built = built
        self._results = RESULTS
        self._multiplied: set[str] = set()  # threads: the library keeps a workspace for each
        self._place = OUTSIDE
        self._lives: list[Life] = []
        self._of: dict[int, Life] = {}  # live storages by address
        self._forgotten: set[int] = set()  # requests, by number
        self._moments: list[tuple[str, Place]] = []
        self._first_nodes: list[int] = []  # ascending; parallel to `_forward_places`
        self._forward_places: list[Place] = []
        self.products: Counter[tuple[str, Product]] = Counter()
        self.moved: Counter[str] = Counter()
        self._is_in_engine = False
        self.uncounted: set[str] = set()
        self._streams = {torch.cpu.current_stream(): 0}
        self.calls, self.sent = Counter[str](), Counter[str]()
        self.actions: list[Action] = []

    def go_to(self, place: Place) -> None:
        """Enter a place of forward or loss; its graph nodes number from here."""
        self._place = place
        self._first_nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._forward_places.append(place)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Count what runs inside ``with`` at a place."""
        before, self._place = self._place, place
        yield
        self._place = before

    def enter(self, phase: str) -> None:
        """Begin a phase whose first moment is the current state; an empty name ends the step."""
        saved = self.graph_is_complete() if phase == "backward" else 0
        if phase in ("forward", "backward"):
            self.note_action(saved)
        self.phase = phase
        if phase:
            self.trace.mark(phase)
        if phase == LOSS:
            self.go_to(Place(0, LOSS))
        elif phase in OF_PARAMETERS:
            self.go_to(OUTSIDE)
        if phase not in ("", "zero-grad"):
            self._moments.append((phase, self._place))

    def note_action(self, saved_bytes: int = 0) -> None:
        """Add what was done until now to `actions`."""
        counts = (self.products, self.moved, self.calls, self.sent)
        copies = tuple(Counter(one) for one in counts)
        self.actions.append(Action(len(self._moments), copies, saved_bytes))

    def own(self, tensor: Tensor, category: str, place: Place | None = None) -> None:
        block = place.block if place is not None else 0
        life = self._of.get(_address(tensor)) or self._follow(tensor, category, block)
        life.category, life.place = category, place

    @property
    def live_bytes(self) -> int:
        return sum(life.bytes for life in self._of.values())

    def has_owner(self, tensor: Tensor) -> bool:
        return _address(tensor) in self._of

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor is of this workload, not of another one that is alive."""
        return self.has_owner(tensor) or self._built.number_of(_address(tensor)) is not None

    def resized(self, tensor: Tensor) -> None:
        """Record that a storage was freed or allocated again by a resize."""
        address, count = _address(tensor), tensor.untyped_storage().nbytes()
        life = self._of.get(address) or self._follow(tensor, GATHERED, self._place.block)
        if life.bytes == count:
            life.category = GATHERED  # made by an operation, in the first step
            return
        life.died = len(self._moments)
        self.trace.give_back(life.number)
        number = self._request(count)
        self._of[address] = Life(count, GATHERED, born=life.died, number=number)
        self._lives.append(self._of[address])
        if count:
            self._moments.append((self.phase, self._place))

    def forget(self, tensor: Tensor) -> None:
        life = self._of.get(_address(tensor))
        if life is not None:
            life.bytes = 0
            self._forgotten.add(life.number)

    def begin_state(self, tensors: Iterable[Tensor]) -> None:
        """Mark which of the built tensors are optimizer state."""
        numbers = [self._built.number_of(_address(tensor)) for tensor in tensors]
        # A tensor without elements has no request.
        first = min((n for n in numbers if n is not None and n >= 0), default=None)
        self.trace.mark_before(first, STATE)

    def graph_is_complete(self) -> int:
        """Count live storages without an owner as saved by the graph; return their bytes."""
        saved = 0
        for life in list(self._of.values()):
            if life.category == TEMPORARIES:
                life.category = ACTIVATIONS
            in_loss = life.category == LOGITS and self.phase == LOSS
            if life.category in (ACTIVATIONS, RECEIVED) or in_loss:
                saved += life.bytes
        self.saved_bytes = max(self.saved_bytes, saved)
        return saved

    def adopt_the_rest(self, category: str = KEPT) -> None:
        """Own what the build and earlier steps left alive and nobody owns."""
        for storage in self._built.storages():
            self._follow(storage, category, 0)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # so that dynamo's code runs under this mode

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _has_parts(types):
            return NotImplemented
        if torch.is_inference_mode_enabled():
            # Without autograd, composite operations arrive before they are decomposed.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._note_engine()
        if "c10d" in func.namespace:
            self._count_collective(func.overloadpacket.__name__, args)
        self._find_place(args)
        result = in_kernel_s_layout(func.overloadpacket, self._results.of(func, args, kwargs))
        self._count(func, args, kwargs, result)
        category = self._category(func, args)
        made = tensors_in(results_on_device(func.overloadpacket, result))
        if func.overloadpacket is _aten.index:  # torch builds its indices without an operation
            made = tensors_in(args[1]) + made
        new = [
            leaf
            for leaf in made
            # On CUDA the optimizers count their steps on the host.
            if _address(leaf) not in self._of and (leaf.is_meta or not self._on_cuda)
        ]
        scratch = [self._request(count) for count in scratch_before(func.overloadpacket, args)]
        replaced = self._replaced_by_sum(func, args)
        places = [*zip(new, self._blocks_of(new, args), strict=True)]
        early = RESULTS_BEFORE_SCRATCH.get(func.overloadpacket, len(new))
        for leaf, block in places[:early]:
            self._follow(leaf, category, block, replaced)
        self._note_library(func.overloadpacket)
        for count in scratch_after(func.overloadpacket, args, result):
            if count >= 0:
                scratch.append(self._request(count))
            else:
                self.trace.give_back(scratch[~count])
                scratch[~count] = -1
        for leaf, block in places[early:]:
            self._follow(leaf, category, block)
        for number in scratch:
            self.trace.give_back(number)
        hidden = hidden_bytes(func.overloadpacket, args, result, on_cuda=self._on_cuda)
        if hidden:
            # Alive at this operation's moment only, which is appended below.
            moment_index = len(self._moments)
            self._lives.append(Life(hidden, TEMPORARIES, born=moment_index, died=moment_index + 1))
        if new or hidden:
            self._moments.append((self.phase, self._place))
        return result

    def _count_collective(self, name: str, args: Sequence[Any]) -> None:
        kind = COLLECTIVES.get(name)
        if kind is None:
            return
        names = [one for one in args if isinstance(one, str)]  # the last is that of the group
        group = (
            _resolve_process_group(GroupName(names[-1])) if names else ProcessGroup.unbox(args[1])
        )
        whole = sum(tensor.nbytes for tensor in tensors_in(args[0]))
        if kind == "all-to-all" and args[2]:  # parts for each rank, such as all for a neighbour
            self.calls[kind] += 1
            others = sum(args[2]) - args[2][group.rank()]
            self.sent[kind] += whole * others // max(1, sum(args[2]))
            return
        self.count_sent(kind, whole * (group.size() if kind == "all-gather" else 1), group.size())

    def count_sent(self, kind: str, whole_bytes: int, ranks: int) -> None:
        """Count a transfer of a tensor that is not divided."""
        self.calls[kind] += 1
        self.sent[kind] += ring_bytes(kind, whole_bytes, ranks)

    def _note_engine(self) -> None:
        """Tell from autograd's engine that a graph is complete: a user names phases freely."""
        was_in_engine = self._is_in_engine
        self._is_in_engine = torch._C._current_graph_task_id() >= 0
        if self._is_in_engine and not was_in_engine and self.phase != "backward":
            self.graph_is_complete()

    @property
    def _is_backward(self) -> bool:
        return self._is_in_engine or self.phase == "backward"

    def _find_place(self, args: Sequence[Any]) -> None:
        if self._is_backward:
            node = torch._C._current_autograd_node()
            is_known = node is not None and bool(self._forward_places)
            if is_known and node.name() != "torch::autograd::AccumulateGrad":
                # The last place entered before the node was made; bisect right, because places with
                # equal starts are empty. AccumulateGrad stays in the place of the previous node.
                index = bisect_right(self._first_nodes, node._sequence_nr()) - 1
                self._place = self._forward_places[max(0, index)]
        elif self.phase in OF_PARAMETERS:
            lives = (self._of.get(_address(leaf)) for leaf in tensors_in(args))
            owned = (life.place for life in lives if life is not None and life.place is not None)
            self._place = next(owned, self._place)

    def _blocks_of(self, new: Sequence[Tensor], args: Sequence[Any]) -> list[int]:
        """Block of each new tensor; results of list operations belong to their operands."""
        operands = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        lives = [self._of.get(_address(leaf)) for leaf in tensors_in(operands)]
        if self.phase not in OF_PARAMETERS or len(lives) != len(new):
            return [self._place.block] * len(new)
        return [
            self._place.block if life is None else self.trace.blocks[life.number] for life in lives
        ]

    def _replaced_by_sum(self, func: Any, args: Sequence[Any]) -> Tensor | None:
        """Return the tensor that the addition overwrites outside of a dispatch mode, or None.

        Such are sums of autograd's engine, and that of attention's scores and mask. Under a
        dispatch mode both go to a new tensor.
        """
        if func is _aten.add.Tensor and math_attention.is_running:
            summand: Tensor = args[0]
            return summand
        if not self._is_backward or func is not _aten.add.Tensor or not _is_called_by_engine():
            return None
        storage = args[0].untyped_storage()
        # One tensor has it, and this storage object: no other view is alive.
        is_alone = torch._C._storage_Use_Count(storage._cdata) == 2
        life = self._of.get(storage._cdata)
        is_received = life is not None and life.category == COMMUNICATION  # the caller has it
        return args[0] if is_alone and not is_received else None

    def _request(self, count: int, block: int | None = None) -> int:
        """Record a request on the current stream; on the CPU torch only remembers which it is."""
        stream = self._streams.setdefault(torch.cpu.current_stream(), len(self._streams))
        return self.trace.request(count, self._place.block if block is None else block, stream)

    def _note_library(self, packet: Any) -> None:
        thread = BACKWARD_PRODUCT if self._is_backward else PRODUCT
        if packet in PRODUCTS and thread not in self._multiplied:
            self._multiplied.add(thread)
            self.trace.mark(thread)

    def _category(self, func: Any, args: Sequence[Any]) -> str:
        if func.overloadpacket is torch.ops.aten._to_copy:
            source = self._of.get(_address(args[0]))
            if source is not None and source.category == "parameters":
                return COPIES
        if COLLECTIVES.get(func.overloadpacket.__name__) == "all-to-all":
            return RECEIVED
        return LOGITS if self._place.name == LOSS else TEMPORARIES

    def _count(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        flops = flops_of(func, args, kwargs)
        if flops is None:
            self.uncounted.add(func._schema.name)
        if flops:
            dtype = str(tensors_in(args)[0].dtype).removeprefix("torch.")
            product = Product(dtype, flops, moved_bytes(func, args, result))
            self.products[self.phase, product] += 1
        elif not func.is_view:
            self.moved[self.phase] += moved_bytes(func, args, result)

    def _follow(
        self, owner: Any, category: str, block: int, instead_of: Tensor | None = None
    ) -> Life:
        """Follow a tensor's storage, or a storage."""
        storage = owner.untyped_storage() if isinstance(owner, Tensor) else owner
        address = storage._cdata
        number = self._built.hand_over(address, block)
        if instead_of is not None:
            source = self._of[_address(instead_of)]
            number, source.number = source.number, -1
            source.died = len(self._moments)  # the sum is in its memory
        elif number is None:
            number = self._request(storage.nbytes(), block)
        life = Life(storage.nbytes(), category, born=len(self._moments), number=number)
        self._lives.append(life)
        self._of[address] = life
        # Without atexit: storages that outlive the step need no end.
        weakref.finalize(storage, self._end, address).atexit = False
        return life

    def _end(self, address: int) -> None:
        life = self._of.pop(address)
        if life.died is None:
            life.died = len(self._moments)
        self.trace.give_back(life.number)

    def whole_trace(self) -> RequestTrace:
        """Every request and return, without forgotten tensors."""
        return self.trace.without(self._forgotten)

    def moments(self) -> Iterator[Moment]:
        """Live bytes at each moment, in order of time."""
        rows = {name: row for row, name in enumerate(ROWS)}
        # One extra entry for storages that are born or die after the last moment; zip drops it.
        changes: list[list[tuple[Life, int]]] = [[] for _ in range(len(self._moments) + 1)]
        for life in self._lives:
            changes[life.born].append((life, 1))
            if life.died is not None:
                changes[life.died].append((life, -1))
        requested = [0] * len(ROWS)
        requested[rows[WORKSPACES]] = self._workspace * len(self._multiplied)
        rounded = requested.copy()
        for (phase, place), changed in zip(self._moments, changes, strict=False):
            for life, sign in changed:
                row = rows[life.category]
                requested[row] += sign * life.bytes
                # -(-a // b) rounds up.
                rounded[row] += sign * -(-life.bytes // GRANULE) * GRANULE
            yield Moment(phase, place.block, place.name, tuple(requested), tuple(rounded))


WRAPPERS = {__name__, "torch._compile", "torch._dynamo.eval_frame"}
"""Modules whose frames lie between an operation and its caller."""


def _is_called_by_engine() -> bool:
    """Whether autograd's engine calls this operation, not a backward that is written in Python."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"] in WRAPPERS:
        frame = frame.f_back
    return bool(frame.f_globals["__name__"] == "torch.autograd.graph")


def _has_parts(types: Iterable[type]) -> bool:
    """Whether an operation is asked for again, on the parts of its tensors."""
    return any(hasattr(kind, name) for kind in types for name in UNWRAPPED)


def _address(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
