"""Collectives by the arguments of their kernels, with bandwidths as nccl-tests counts them."""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.record.steps import TracedCollective
from sysbench.core.trace.collective_kernels import bus_factor, collective_rows, kind_of
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from tests.core.trace.ledgers import GEMM


def rows_of(writer: Any) -> list[TracedCollective]:
    trace = read_trace(writer.write())
    return collective_rows(time_ledger(trace), trace.collectives)


def collective(
    writer: Any,
    kernel: str,
    start: int,
    length: int,
    name: str,
    sizes: tuple[int, int],
    **more: Any,
) -> None:
    arguments = {"Collective name": name, "dtype": "BFloat16", "Group size": 4}
    arguments |= {"In msg nelems": sizes[0], "Out msg nelems": sizes[1]}
    arguments |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"} | more
    writer.add("kernel", kernel, start, length, device=0, correlation=start, **arguments)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all-reduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all-gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send-receive"),
        ("multimem_all_reduce_kernel", "all-reduce"),
        ("void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>", "all-reduce"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all-reduce"),
        ("ncclReduceScatterRingLLKernel_sum_f16(ncclColl)", "reduce-scatter"),
        ("ncclSymkDevKernel_AllGather_STMC", "all-gather"),
        ("multimem_one_shot_all_reduce_kernel<__nv_bfloat16>", "all-reduce"),
        ("multimem_all_gather_kernel", "all-gather"),
        ("barrier", "barrier"),
    ],
)
def test_kind_from_any_generation_of_names(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_calls_alike_are_one_row_with_bytes_and_bandwidths(writer: Any) -> None:
    name = "ncclDevKernel_Generic"
    collective(writer, name, 100, 1000, "allreduce", (5000, 5000))
    collective(writer, name, 2000, 3000, "allreduce", (5000, 5000))
    collective(writer, name, 6000, 500, "_allgather_base", (1000, 4000))
    collective(writer, name, 7000, 400, "_reduce_scatter_base", (4000, 1000))
    writer.work(GEMM, 4000, 500, correlation=99, stream=14)
    rows = rows_of(writer)
    assert [(row.kind, row.bytes, row.calls, row.total_ns) for row in rows] == [
        ("all-reduce", 10_000, 2, 4000),
        ("all-gather", 8000, 1, 500),
        ("reduce-scatter", 8000, 1, 400),
    ]
    reduce = rows[0]
    assert (reduce.group_size, reduce.ranks, reduce.dtype) == (4, "[0, 1, 2, 3]", "BFloat16")
    assert (reduce.exposed_ns, reduce.mean_ns, reduce.min_ns) == (3500, 2000, 1000)
    # 10,000 bytes in 2,000 ns are 5 GB/s; an all-reduce of four ranks moves each byte 3/2 times.
    assert reduce.algorithm_gbs == pytest.approx(5)
    assert (reduce.bus_gbs, reduce.best_bus_gbs) == pytest.approx((7.5, 15))
    assert rows[1].bus_gbs == pytest.approx(16 * 3 / 4)


def test_what_the_arguments_do_not_say_is_not_made_up(writer: Any) -> None:
    writer.work("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 100, correlation=1)
    collective(writer, "nccl", 200, 90, "allreduce", (5, 5), dtype="Quaternion")
    collective(writer, "nccl", 300, 80, "allreduce", (5, 5), **{"In msg nelems": "many"})
    collective(writer, "nccl", 400, 70, "allreduce", (5, 5), **{"Group size": 2**70})
    rows = rows_of(writer)
    assert [row.kind for row in rows] == ["all-reduce"] * 4
    assert [row.bytes for row in rows] == [None, None, None, 10]
    assert [row.bus_gbs for row in rows] == [None] * 4
    assert rows[0].group_size is None and rows[3].group_size is None


def test_one_rank_moves_nothing_and_an_unknown_kind_has_no_factor() -> None:
    assert bus_factor("all-reduce", 1) == 0
    assert bus_factor("other", 4) is None
