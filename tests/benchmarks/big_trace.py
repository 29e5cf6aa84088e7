"""A chrome trace of any size in the form torch.profiler writes, the same for the same seed.

Training steps of a transformer: module ranges, nested operators, launches with flow arrows,
kernels on one stream, a backward pass on a second thread. Times are nanoseconds since the
Unix epoch, which floats cannot hold.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

PID = 4242
BACKWARD_THREAD = 4343
EPOCH_NS = 1_700_000_000_000_000_000
LAYERS = 24

KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
    "_execute_segment_k_off_kernel__5x_cublas",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> > > >"
    "(at::TensorIteratorBase&, at::native::BinaryFunctor<float, float, float> const&)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, "
    "float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false, 32>"
    "(float*, float const*, int, int, int, bool const*, int, bool)",
)
OPERATORS = (
    ("aten::linear", "aten::mm"),
    ("aten::add", "aten::add"),
    ("aten::mul", "aten::mul"),
    ("aten::mean", "aten::mean"),
    ("aten::softmax", "aten::_softmax"),
)
MODULES = ("attention_norm", "attention.q", "attention", "ffn_norm", "ffn.w1", "ffn")


def write_big_trace(path: Path, events: int, seed: int = 0) -> None:
    """Write a trace of N events; a million are about 300 MB."""
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "traceEvents": [\n')
        for number, event in enumerate(islice(_events(random.Random(seed)), events)):
            file.write(",\n" + event if number else event)
        file.write('\n  ],\n  "traceName": "big.json"\n}\n')


def _events(chance: random.Random) -> Iterator[str]:
    now, correlation = EPOCH_NS, 0
    device_free = EPOCH_NS
    while True:
        for phase in ("forward", "backward"):
            began, inside = now, []
            for layer in range(LAYERS):
                for module in MODULES:
                    opened = now
                    calls: list[str] = []
                    for _ in range(6):
                        kind = chance.randrange(len(KERNELS))
                        correlation += 1
                        now += chance.randrange(3_000, 9_000)
                        start = max(device_free, now + 4_000)
                        duration = chance.randrange(2_000, 12_000)
                        device_free = start + duration + 500
                        calls += _call(phase, kind, correlation, now, start, duration)
                        now += 12_000
                    if phase == "forward":
                        path = f"mod:blocks.{layer}.{module}"
                        inside.append(_operator(path, PID, opened, now - opened, correlation))
                    inside += calls
            yield _operator(f"phase:{phase}", PID, began, now - began, 0)
            yield from inside


def _call(
    phase: str, kind: int, correlation: int, now: int, start: int, duration: int
) -> Iterator[str]:
    """One operator: what the host ran, and the kernel."""
    outer, inner = OPERATORS[kind]
    thread = PID if phase == "forward" else BACKWARD_THREAD
    if phase == "backward":
        outer = "autograd::engine::evaluate_function: MmBackward0"
    yield _operator(outer, thread, now, 11_000, correlation)
    yield _operator(inner, thread, now + 1_000, 9_000, correlation)
    yield (
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {PID}, '
        f'"tid": {thread},\n    "ts": {_us(now + 3_000)}, "dur": {_us(4_000)},\n    "args": '
        f'{{\n      "External id": {correlation}, "cbid": 211, "correlation": {correlation}\n'
        f"    }}\n  }}"
    )
    yield (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{KERNELS[kind]}", "pid": 0, "tid": 7,\n'
        f'    "ts": {_us(start)}, "dur": {_us(duration)},\n    "args": {{\n      "External id": '
        f'{correlation}, "queued": 0, "device": 0, "context": 1,\n      "stream": 7, '
        f'"correlation": {correlation},\n      "registers per thread": 32, "shared memory": 0, '
        f'"blocks per SM": 2.0,\n      "warps per SM": 8.0, "grid": [128, 1, 1], '
        f'"block": [256, 1, 1],\n'
        f'      "est. achieved occupancy %": 50\n    }}\n  }}'
    )
    for mark, time, pid, thread_id in (("s", now + 3_000, PID, thread), ("f", start, 0, 7)):
        yield (
            f'  {{\n    "ph": "{mark}", "id": {correlation}, "pid": {pid}, "tid": {thread_id}, '
            f'"ts": {_us(time)},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}'
        )


def _operator(name: str, thread: int, start: int, duration: int, sequence: int) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {PID}, "tid": {thread},\n'
        f'    "ts": {_us(start)}, "dur": {_us(duration)},\n    "args": {{\n      "External id": '
        f'{sequence}, "Record function id": 0, "Sequence number": {sequence}, '
        f'"Fwd thread id": {int(thread != PID)}, "Ev Idx": {sequence}\n    }}\n  }}'
    )


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
