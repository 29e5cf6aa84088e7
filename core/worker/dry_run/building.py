"""Requests for storages while the model and its inputs are built."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.core.predict.requests import RequestTrace

_copy = torch.ops.aten._to_copy


class BuildTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage until the step's tracker takes it over."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = RequestTrace()
        self._numbers: dict[int, int] = {}  # live storages by address
        self._copies: list[tuple[int, int]] = []
        self._made_from: list[tuple[int, int]] = []

    def number_of(self, address: int) -> int | None:
        """Number of a live storage; None if unknown, for example on the host."""
        return self._numbers.get(address)

    def hand_over(self, address: int, block: int) -> int | None:
        """Number of a storage that another tracker takes over; None if unknown."""
        number = self._numbers.pop(address, None)
        if number is not None and number >= 0:
            self.trace.blocks[number] = block
        return number

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
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_meta:
            storage = result.untyped_storage()
            address = storage._cdata
            if address not in self._numbers:
                number = self._numbers[address] = self.trace.request(storage.nbytes())
                weakref.finalize(storage, self._end, address).atexit = False
                self._note_source(func, args, number)
        return result

    def _note_source(self, func: Any, args: Sequence[Any], number: int) -> None:
        first = args[0] if args and isinstance(args[0], Tensor) else None
        source = None if first is None else self.number_of(first.untyped_storage()._cdata)
        if source is not None and source >= 0 <= number:
            (self._copies if func.overloadpacket is _copy else self._made_from).append(
                (source, number)
            )

    def _end(self, address: int) -> None:
        number = self._numbers.pop(address, None)
        if number is not None:
            self.trace.give_back(number)
