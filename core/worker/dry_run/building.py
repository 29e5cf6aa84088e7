"""Requests for storages while the model and its inputs are built."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.core.predict.requests import RequestTrace
from sysbench.core.worker.dry_run.operations import RESULTS
from sysbench.core.worker.workloads.stepped_workload import tensors_in

_copy = torch.ops.aten._to_copy


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

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # a tensor of several ranks asks again for its shard
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
            (self._copies if func.overloadpacket is _copy else self._made_from).append(
                (source, number)
            )

    def _end(self, address: int, count: int) -> None:
        number = self._numbers.pop(address, None)
        self._storages.pop(address, None)
        self.live_bytes -= count
        if number is not None:
            self.trace.give_back(number)
