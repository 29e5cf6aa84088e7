"""Measure a device's rates: products, memory, transfers, launches.

Run as ``python -P -m sysbench.core.worker.measure_rates PID``. Reads a `RateRequest`, a line of
JSON on standard input, answers with a line for each rate, and ends with the process PID.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path

import msgspec
import psutil
import torch
from torch.cuda import nccl
from torch.utils.benchmark import Timer

from sysbench.core.machine.host_sampler import die_with_parent
from sysbench.core.record.device_rates import (
    KINDS,
    RateAnswer,
    RateHost,
    RateKind,
    RateMissing,
    RateRequest,
    RateTimed,
)
from sysbench.core.storage import text_of

SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192, 16384)}
"""Rows of the square matrices."""
MIN_ARRAY_BYTES = 256 * 2**20
CACHES = 4
"""Size of the arrays in last-level caches, as STREAM requires (McCalpin)."""
MAX_MEMORY_SHARE = 1 / 16
"""Maximum share of the free memory per array; there are three."""
MAX_PRODUCT_TIMES = 20.0
"""Skip a larger product if it would take more than this many times the minimum time."""

ROW = 1024
"""Row length for writes."""

LONG_ROW = 8 * ROW
"""Row length for reads; rows of 1,024 reached only 0.8 of the rate on Zen 3."""

Amount = tuple[float, str]
"""Value in the kind's unit, and a description of the work."""


class Unavailable(Exception):
    """The device has no such rate; the message has the reason."""


class Bench:
    """Measures the rates of one device."""

    def __init__(self, request: RateRequest) -> None:
        self.device = torch.device(request.device)
        self.peers = [torch.device(peer) for peer in request.peers]
        self._seconds = request.seconds
        if self.on_cuda:
            torch.cuda.set_device(self.device)

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def seconds(self, call: Callable[[], object]) -> float:
        """Median seconds of a call; each block of calls ends with a device synchronisation."""
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        return float(timer.blocked_autorange(min_run_time=self._seconds).median)

    def product(self, kind: RateKind) -> Amount:
        """Best rate of ``n × n`` matrix products over all sizes, 2 n³ FLOP each."""
        has_it = (
            torch.cuda.get_device_capability(self.device) >= kind.capability
            if self.on_cuda
            else kind.on_cpu
        )
        if not has_it:
            raise Unavailable("this device has no such products")
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if kind.is_rounded else "highest")
        try:
            return max(self._products(getattr(torch, kind.dtype)))
        finally:
            torch.set_float32_matmul_precision(before)

    def _products(self, dtype: torch.dtype) -> Iterator[Amount]:
        for n in SIZES[self.device.type]:
            if 3 * n * n * dtype.itemsize > self._free_bytes() * MAX_MEMORY_SHARE * 3:
                return
            # Random numbers: a GPU draws less power, and clocks higher, on zeros.
            a, b = (torch.randn(n, n, device=self.device).to(dtype) for _ in "ab")
            out = torch.empty(n, n, dtype=dtype, device=self.device)
            seconds = self.seconds(partial(torch.mm, a, b, out=out))
            yield 2 * n**3 / seconds, f"{n} × {n} × {n}"
            if 8 * seconds > MAX_PRODUCT_TIMES * self._seconds:
                return

    def memory(self, what: str) -> Amount:
        """Best rate of one pass over float32 arrays larger than the caches, in bytes/s."""
        moved, ways = self._passes()[what]
        count = self.arrays[0].nbytes
        return max(
            (moved * count / self.seconds(call), f"arrays of {count // 2**20} MiB, {way}")
            for way, call in ways.items()
        )

    def _passes(self) -> dict[str, tuple[int, dict[str, Callable[[], object]]]]:
        """Number of arrays moved, and operators that move them, by kind of pass."""
        x, y, z = self.arrays
        rows, row = x.view(-1, ROW), torch.ones(1, ROW, device=self.device)
        firsts = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
        long_rows, long_row = x.view(-1, LONG_ROW), torch.ones(LONG_ROW, device=self.device)
        sums = torch.empty(len(long_rows), device=self.device)
        # One thread's sum waits for its own additions before it waits for memory.
        reads: dict[str, Callable[[], object]] = {
            "sum": x.sum,
            "dot": lambda: torch.dot(x, x),
            "mv": lambda: torch.mv(long_rows, long_row, out=sums),
        }
        # The CPU writes faster by whole rows, copied from one in its cache.
        writes: dict[str, Callable[[], object]] = {
            "fill_": lambda: x.fill_(1.0),
            "index_select": lambda: torch.index_select(row, 0, firsts, out=rows),
        }
        return {
            "read": (1, reads),
            "write": (1, writes),
            "copy": (2, {"copy_": lambda: y.copy_(x)}),
            "triad": (3, {"add": lambda: torch.add(x, y, alpha=3.0, out=z)}),
        }

    @cached_property
    def arrays(self) -> list[torch.Tensor]:
        """Three float32 arrays, written: pages that were never written have no memory."""
        wanted = max(MIN_ARRAY_BYTES, CACHES * self._cache_bytes())
        size = int(min(wanted, self._free_bytes() * MAX_MEMORY_SHARE)) // 2**20 * 2**20
        count = size // 4 // LONG_ROW * LONG_ROW
        return [torch.ones(count, device=self.device) for _ in range(3)]

    def transfer(self, *, to_device: bool) -> Amount:
        """Bytes/s between pinned host memory and the device."""
        if not self.on_cuda:
            raise Unavailable("the CPU's memory is the host's")
        host = torch.ones(MIN_ARRAY_BYTES // 4, pin_memory=True)
        there = torch.ones(MIN_ARRAY_BYTES // 4, device=self.device)
        target, source = (there, host) if to_device else (host, there)
        seconds = self.seconds(lambda: target.copy_(source, non_blocking=True))
        return MIN_ARRAY_BYTES / seconds, f"{MIN_ARRAY_BYTES // 2**20} MiB"

    def launch(self, *, wait: bool) -> Amount:
        """Seconds of an operator on one element."""
        one = torch.ones(1, device=self.device)
        if not wait:
            return self.seconds(one.zero_), "zero_ of one element"
        if not self.on_cuda:
            raise Unavailable("on the CPU an operator has ended when it returns")

        def zero_and_wait() -> None:
            one.zero_()
            torch.cuda.synchronize(self.device)

        return self.seconds(zero_and_wait), "zero_ of one element"

    def peer_copy(self) -> Amount:
        """Bytes/s to the slowest of the other devices."""
        if not self.peers:
            raise Unavailable("no other device is measured")
        source = torch.ones(MIN_ARRAY_BYTES // 4, device=self.device)
        rates = []
        for peer in self.peers:
            target = torch.empty_like(source, device=peer)

            def copy(peer: torch.device = peer, target: torch.Tensor = target) -> None:
                target.copy_(source)
                torch.cuda.synchronize(peer)

            is_direct = torch.cuda.can_device_access_peer(self.device, peer)
            route = "directly" if is_direct else "through the host"
            rates.append((MIN_ARRAY_BYTES / self.seconds(copy), f"to {peer}, {route}"))
        return min(rates)

    def all_reduce(self) -> Amount:
        """Bus bandwidth: 2 (n − 1) / n times bytes over seconds, as nccl-tests defines it."""
        if not self.peers:
            raise Unavailable("no other device is measured")
        devices = [self.device, *self.peers]
        arrays = [torch.ones(MIN_ARRAY_BYTES // 4, device=device) for device in devices]
        if not nccl.is_available(arrays):  # type: ignore[no-untyped-call]
            raise Unavailable("this torch has no NCCL")

        def reduce() -> None:
            nccl.all_reduce(arrays)  # type: ignore[no-untyped-call]
            for device in devices:
                torch.cuda.synchronize(device)

        share = 2 * (len(devices) - 1) / len(devices)
        work = f"{MIN_ARRAY_BYTES // 2**20} MiB over {len(devices)} devices"
        return share * MIN_ARRAY_BYTES / self.seconds(reduce), work

    def _free_bytes(self) -> int:
        if self.on_cuda:
            return torch.cuda.mem_get_info(self.device)[0]
        return int(psutil.virtual_memory().available)

    def _cache_bytes(self) -> int:
        if self.on_cuda:
            return torch.cuda.get_device_properties(self.device).L2_cache_size
        text = text_of(Path("/sys/devices/system/cpu/cpu0/cache/index3/size"))
        return int(text.removesuffix("K") or 0) * 1024


MEASURES: dict[str, Callable[[Bench], Amount]] = {
    **{kind.name: partial(Bench.product, kind=kind) for kind in KINDS if kind.dtype},
    "memory read": partial(Bench.memory, what="read"),
    "memory write": partial(Bench.memory, what="write"),
    "memory copy": partial(Bench.memory, what="copy"),
    "memory triad": partial(Bench.memory, what="triad"),
    "host to device": partial(Bench.transfer, to_device=True),
    "device to host": partial(Bench.transfer, to_device=False),
    "launch": partial(Bench.launch, wait=False),
    "launch and wait": partial(Bench.launch, wait=True),
    "peer copy": Bench.peer_copy,
    "all-reduce": Bench.all_reduce,
}


def answers(request: RateRequest) -> Iterator[RateAnswer]:
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    bench = Bench(request)
    yield RateHost(torch=str(torch.__version__), threads=torch.get_num_threads())
    for kind in KINDS:
        began_ns = time.time_ns()
        try:
            value, work = MEASURES[kind.name](bench)
        except Unavailable as reason:
            yield RateMissing(name=kind.name, reason=str(reason))
        except RuntimeError as error:  # torch's: out of memory, no kernel for a type
            yield RateMissing(name=kind.name, reason=str(error).partition("\n")[0])
        else:
            yield RateTimed(
                name=kind.name,
                value=value,
                work=work,
                began_ns=began_ns,
                ended_ns=time.time_ns(),
            )
        if bench.on_cuda:
            torch.cuda.empty_cache()


def main() -> int:
    # Standard output is for answers; redirect output of torch to standard error.
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    die_with_parent(int(sys.argv[1]))
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=RateRequest)
    for answer in answers(request):
        output.write(msgspec.json.encode(answer) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
