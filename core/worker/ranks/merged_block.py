"""The record's distributed block, merged from every rank's measurements of the same steps."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from sysbench.core.compare.statistics import spread
from sysbench.core.record.distributed import (
    AllReduce,
    CollectiveRow,
    Distributed,
    HostRow,
    Kind,
    MemoryRow,
    Moment,
    RankRow,
)
from sysbench.core.record.timing import Spread
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.collective_kernels import (
    Collective,
    RankStep,
    Split,
    disorder_ns,
    last_counts,
    split_step,
    transfer_times,
)
from sysbench.core.worker.step_clock import TimedSteps
from sysbench.core.worker.workloads.stepped_workload import EnterPhase, tensors_in

NONE = "none: loopback of one host"


def interconnect_of(spec: RunSpec, hosts: int) -> str:
    """Describe the connection of the ranks: whether CUDA devices access each other's memory."""
    if hosts > 1:
        return f"network between {hosts} hosts"
    if not spec.on_cuda:
        return NONE
    numbers = [torch.device(device).index for device in spec.devices]
    reached = [
        torch.cuda.can_device_access_peer(number, other)
        for number in numbers
        for other in numbers
        if number != other
    ]
    if all(reached):
        return "peer to peer between all CUDA devices"
    return "through the host between some CUDA devices" if any(reached) else "through the host"


PARTS = ("compute_ns", "exposed_ns", "waiting_ns", "transfer_ns")
BY_EVENTS = "transfer is that of the last rank, by its own events: too short to measure arrivals"
BUS_FORMULA = "algorithm = payload / transfer; bus = algorithm · 2 (n - 1) / n"


class RankFacts(msgspec.Struct, frozen=True):
    """Number, device, process, host threads, and host of a rank."""

    rank: int
    device: str
    pid: int
    threads: int
    host: int = 0
    node: str | None = None


def slowest(batches: Sequence[TimedSteps]) -> TimedSteps:
    """Merge batches of the same steps: each step has the times of its slowest rank."""
    by_step = zip(*(batch.step_ms for batch in batches), strict=True)
    chosen = [batches[step_ms.index(max(step_ms))] for step_ms in by_step]
    return TimedSteps(
        step_ms=[batch.step_ms[index] for index, batch in enumerate(chosen)],
        phases_ms={
            name: [batch.phases_ms[name][index] for index, batch in enumerate(chosen)]
            for name in batches[0].phases_ms
        },
        # A rank times its issue in the first step of a batch, or in all.
        issue_ms=[
            batch.issue_ms[index]
            for index, batch in enumerate(chosen)
            if index < len(batch.issue_ms)
        ],
        wall_ms=max(batch.wall_ms for batch in batches),
    )


def merged_block(
    spec: RunSpec,
    backend: str,
    steps: Sequence[Sequence[RankStep]],
    facts: Sequence[RankFacts],
    memory: Sequence[MemoryRow],
    why_unseen: str,
) -> Distributed:
    """Build the record's distributed block.

    Args:
        steps: The measured steps, each with one entry per rank.
        memory: Memory rows of the ranks, if the workload has an optimizer.
        why_unseen: Why stalls of computation were not measured; else empty.
    """
    splits = [split_step(step) for step in steps]
    parts = {name: _parts_ms(splits, name) for name in PARTS}
    hosts = host_rows(steps, facts)
    return Distributed(
        ranks=spec.ranks,
        parallel=spec.parallel,
        backend=backend,
        interconnect=interconnect_of(spec, len(hosts)),
        shard_optimizer=spec.shard_optimizer,
        bucket_mib=spec.bucket_mib if spec.parallel in ("bucketed", "ddp") else None,
        steps=len(steps),
        step=spread(_means([[split.step_ns for split in step] for step in splits])),
        compute=_spread(parts["compute_ns"]),
        exposed=_spread(parts["exposed_ns"]),
        waiting=_spread(parts["waiting_ns"]),
        transfer=_spread(parts["transfer_ns"]),
        communication=spread(
            _means([[split.communication_ns for split in step] for step in splits])
        ),
        disorder_ms=max(map(disorder_ns, steps)) / 1e6,
        # Every rank runs the same collectives, so rank 0's stand for all.
        collectives=_collective_rows([step[0].collectives for step in steps], spec.ranks),
        rows=[
            _rank_row(rank, steps, [step[rank.rank] for step in splits], bool(hosts))
            for rank in facts
        ],
        memory=list(memory),
        all_reduce=_all_reduce(spec, steps) if spec.workload == "all-reduce" else None,
        clock_error_ms=max(rank.error_ns + rank.host_error_ns for step in steps for rank in step)
        / 1e6,
        hosts=hosts,
        missing={name.removesuffix("_ns"): why_unseen for name in PARTS if parts[name] is None},
    )


def host_rows(steps: Sequence[Sequence[RankStep]], facts: Sequence[RankFacts]) -> list[HostRow]:
    """Hosts of the ranks and their clock offsets; empty for a single host."""
    names = {rank.host: rank.node for rank in facts}
    if len(names) == 1:
        return []
    return [
        HostRow(
            host=host,
            node=node,
            ranks=sum(rank.host == host for rank in facts),
            clock_ahead_ms=next(one.host_ahead_ns for one in steps[-1] if one.host == host) / 1e6,
            clock_error_ms=max(
                one.host_error_ns for step in steps for one in step if one.host == host
            )
            / 1e6,
        )
        for host, node in sorted(names.items())
    ]


def _parts_ms(splits: Sequence[Sequence[Split]], name: str) -> list[float] | None:
    """One sample per step, mean over ranks in milliseconds; None if a step has no value."""
    steps: list[list[int | None]] = [[getattr(split, name) for split in step] for step in splits]
    measured = [[value for value in step if value is not None] for step in steps]
    return _means(measured) if all(map(len, measured)) else None


def _means(steps: Sequence[Sequence[int]]) -> list[float]:
    return [sum(step) / len(step) / 1e6 for step in steps]


def _spread(samples: list[float] | None) -> Spread | None:
    return None if samples is None else spread(samples)


def _collective_rows(steps: Sequence[Sequence[Collective]], ranks: int) -> list[CollectiveRow]:
    calls: Counter[Kind] = Counter()
    sizes: Counter[Kind] = Counter()
    for step in steps:
        for collective in step:
            calls[collective.kind] += 1
            sizes[collective.kind] += collective.bytes
    return [
        CollectiveRow(
            kind=kind,
            calls=calls[kind] / len(steps),
            bytes=sizes[kind] / len(steps),
            sent_bytes=sizes[kind] / len(steps) * ring_share(kind, ranks),
        )
        for kind in calls
    ]


def ring_share(kind: Kind, ranks: int) -> float:
    """Bytes that a rank sends in a ring, as a share of the collective's bytes.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations":
    an all-reduce is a reduce-scatter and an all-gather.
    """
    share = (ranks - 1) / ranks
    return 2 * share if kind == "all-reduce" else share


def _rank_row(
    facts: RankFacts,
    steps: Sequence[Sequence[RankStep]],
    splits: Sequence[Split],
    has_hosts: bool,
) -> RankRow:
    collectives = sum(len(step[0].collectives) for step in steps)
    last = sum(last_counts(step)[facts.rank] for step in steps)
    return RankRow(
        rank=facts.rank,
        device=facts.device,
        pid=facts.pid,
        threads=facts.threads,
        step_ms=statistics.median(split.step_ns for split in splits) / 1e6,
        compute_ms=_median_ms(splits, "compute_ns"),
        exposed_ms=_median_ms(splits, "exposed_ns"),
        waiting_ms=_median_ms(splits, "waiting_ns"),
        transfer_ms=_median_ms(splits, "transfer_ns"),
        communication_ms=statistics.median(split.communication_ns for split in splits) / 1e6,
        last_share=last / collectives,
        host=facts.host if has_hosts else None,
    )


def _median_ms(splits: Sequence[Split], name: str) -> float | None:
    values: list[int | None] = [getattr(split, name) for split in splits]
    measured = [value for value in values if value is not None]
    return statistics.median(measured) / 1e6 if measured else None


def _all_reduce(spec: RunSpec, steps: Sequence[Sequence[RankStep]]) -> AllReduce:
    payload = steps[0][0].collectives[0].bytes
    times_ms, timed_by = transfer_times(steps)
    transfer = spread(times_ms)
    algorithm = payload / (transfer.median_ms * 1e6)  # bytes / ns = gigabytes / s
    return AllReduce(
        payload_bytes=payload,
        transfer=transfer,
        algorithm_gigabytes_per_second=algorithm,
        bus_gigabytes_per_second=algorithm * ring_share("all-reduce", spec.ranks),
        formula=BUS_FORMULA if timed_by == "arrivals" else f"{BUS_FORMULA}; {BY_EVENTS}",
        timed_by=timed_by,
    )


def resident_row(
    rank: int, moment: Moment, model: nn.Module, states: Mapping[Tensor, Mapping[str, object]]
) -> MemoryRow:
    """Current memory row of a rank; sharded tensors count their local shard."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    kept = [value for state in states.values() for value in tensors_in(state)]
    sizes = [_local_bytes(tensors) for tensors in (parameters, gradients, kept)]
    on_cuda = parameters[0].is_cuda
    return MemoryRow(
        rank=rank,
        moment=moment,
        parameter_bytes=sizes[0],
        gradient_bytes=sizes[1],
        optimizer_bytes=sizes[2],
        total_bytes=sum(sizes),
        allocated_bytes=torch.cuda.memory_allocated() if on_cuda else None,
        peak_allocated_bytes=torch.cuda.max_memory_allocated() if on_cuda else None,
    )


def rows_around_optimizer(
    step: Callable[[EnterPhase], None], row: Callable[[Moment], MemoryRow]
) -> list[MemoryRow]:
    """Run one step; return the rows just before and after its optimizer."""
    rows: list[MemoryRow] = []

    def enter(phase: str) -> None:
        if phase == "optimizer":
            rows.append(row("before step"))
            _forget_peak()
        elif len(rows) == 1:  # the first phase after the optimizer
            rows.append(row("after step"))

    _forget_peak()
    step(enter)
    return rows


def _forget_peak() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    # By method, not type: importing DTensor takes half a second, and only fsdp2 has any.
    return sum(
        (tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes for tensor in tensors
    )
