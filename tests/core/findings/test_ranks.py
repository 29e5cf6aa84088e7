"""Findings about several ranks, on blocks written by hand."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.compare.statistics import spread
from sysbench.core.findings.ranks_rules import (
    clocks_disagree,
    exposed,
    no_interconnect,
    straggler,
)
from sysbench.core.record.distributed import CollectiveRow, HostRow, RankRow
from sysbench.core.record.record import Distributed, Record
from sysbench.core.record.timing import Spread
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.section_tables import tables_of


def always(ms: float) -> Spread:
    return spread([ms] * 8)


def rank_row(rank: int, last_share: float) -> RankRow:
    return RankRow(
        rank=rank,
        device=f"cuda:{rank}",
        pid=rank + 10,
        threads=1,
        step_ms=100.0,
        compute_ms=70.0,
        exposed_ms=30.0,
        waiting_ms=10.0,
        transfer_ms=20.0,
        communication_ms=40.0,
        last_share=last_share,
    )


def record_of(**changes: object) -> Record:
    block = Distributed(
        ranks=2,
        parallel="naive",
        backend="nccl",
        interconnect="peer to peer between all CUDA devices",
        shard_optimizer=False,
        bucket_mib=None,
        steps=8,
        step=always(100.0),
        compute=always(98.0),
        exposed=always(2.0),
        waiting=always(1.0),
        transfer=always(1.0),
        communication=always(4.0),
        disorder_ms=0.0,
        collectives=[CollectiveRow("all-reduce", 1.0, 8.0, 8.0)],
        rows=[rank_row(0, 0.5), rank_row(1, 0.5)],
        memory=[],
    )
    spec = RunSpec(ranks=2, parallel="naive", device="cuda:0")
    return Record(
        id="r",
        identity=spec.identity,
        status="finished",
        created_ns=0,
        spec=msgspec.to_builtins(spec),
        parameters=1,
        environment={},
        distributed=msgspec.structs.replace(block, **changes),
    )


RULES = (no_interconnect, straggler, exposed, clocks_disagree)


@pytest.mark.parametrize("rule", RULES)
def test_no_finding_for_short_waits_or_one_rank(rule: object) -> None:
    assert callable(rule)
    assert rule(record_of()) is None
    assert rule(msgspec.structs.replace(record_of(), distributed=None)) is None


def test_straggler_is_named_with_its_cost() -> None:
    rows = [rank_row(0, 0.02), rank_row(1, 0.98)]
    found = straggler(record_of(waiting=always(12.0), rows=rows))
    assert found is not None
    assert "Rank 1" in found.verdict
    assert "cuda:1" in found.next
    assert found.numbers["waiting_share"] == pytest.approx(0.12)


def test_no_straggler_if_ranks_take_turns() -> None:
    assert straggler(record_of(waiting=always(12.0))) is None


def test_exposed_transfer() -> None:
    found = exposed(record_of(transfer=always(30.0), communication=always(40.0)))
    assert found is not None
    assert "30 %" in found.verdict
    assert found.numbers["hidden_share"] == pytest.approx(0.25)
    assert found.next == "Try parallel=bucketed, parallel=ddp or a larger batch on each rank."


def test_a_strategy_in_use_is_no_remedy() -> None:
    slow = record_of(transfer=always(30.0), communication=always(40.0), parallel="ddp")
    found = exposed(slow)
    assert found is not None and found.next == "Try a larger batch on each rank."


def test_no_finding_for_unknown_parts() -> None:
    unseen = record_of(compute=None, exposed=None, waiting=None, transfer=None)
    assert straggler(unseen) is None
    assert exposed(unseen) is None


def test_clocks_that_disagree() -> None:
    found = clocks_disagree(record_of(disorder_ms=0.4))
    assert found is not None
    assert "0.4 ms" in found.verdict


def test_ranks_on_the_cpu_are_labelled() -> None:
    record = record_of()
    on_cpu = msgspec.structs.replace(record, spec=record.spec | {"device": "cpu"})
    found = no_interconnect(on_cpu)
    assert found is not None
    assert found.severity == "note"


def two_hosts(error_ms: float) -> list[HostRow]:
    return [
        HostRow(host=0, node="3f2a91", ranks=1, clock_ahead_ms=0.0, clock_error_ms=0.0),
        HostRow(host=1, node="77aa01", ranks=1, clock_ahead_ms=5.0, clock_error_ms=error_ms),
    ]


@pytest.mark.parametrize(("error_ms", "expected"), [(11.9, True), (12.0, False)])
def test_no_straggler_within_the_clock_error_between_hosts(error_ms: float, expected: bool) -> None:
    rows = [msgspec.structs.replace(rank_row(n, n * 0.98), host=n) for n in (0, 1)]
    found = straggler(record_of(waiting=always(12.0), rows=rows, hosts=two_hosts(error_ms)))
    assert (found is not None) == expected
    if found is not None:
        assert found.why.endswith("The clock error between hosts is 12 ms.")
        assert "host 1, cuda:1" in found.next
        assert found.numbers["clock_error_ms"] == error_ms


def test_clocks_of_hosts_disagree_only_beyond_their_error() -> None:
    assert clocks_disagree(record_of(disorder_ms=0.4, hosts=two_hosts(0.4))) is None
    assert clocks_disagree(record_of(disorder_ms=0.41, hosts=two_hosts(0.4))) is not None


def test_ranks_of_several_hosts_share_no_cpu() -> None:
    record = record_of(hosts=two_hosts(0.1))
    on_cpu = msgspec.structs.replace(record, spec=record.spec | {"device": "cpu"})
    assert no_interconnect(on_cpu) is None


def test_table_of_hosts_and_host_of_each_rank() -> None:
    rows = [msgspec.structs.replace(rank_row(n, 0.5), host=n) for n in (0, 1)]
    tables = {table.name: table for table in tables_of(record_of(hosts=two_hosts(0.1), rows=rows))}
    assert tables["distributed-hosts"].column("node") == ["3f2a91", "77aa01"]
    assert tables["distributed-hosts"].column("clock_error_ms") == [0.0, 0.1]
    assert tables["distributed-ranks"].column("host") == [0, 1]
    alone = {table.name: table for table in tables_of(record_of())}
    assert "host" not in alone["distributed-ranks"].columns
    assert "distributed-hosts" not in alone or not alone["distributed-hosts"].rows
