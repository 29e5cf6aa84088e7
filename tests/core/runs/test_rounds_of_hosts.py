"""Rounds of ranks on several hosts: those on other nodes than the first do not count."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sysbench.core.compare.statistics import spread
from sysbench.core.record.distributed import Distributed, HostRow, RankRow
from sysbench.core.record.events import PassEnded, PassStarted, ResultReported
from sysbench.core.runs.builder import RecordBuilder
from sysbench.core.runs.run_directory import create_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.context import headline

RUN = {"cluster": {"node": "3f2a91", "nodes": "3f2a91,77aa01"}}


def block_on(*nodes: str) -> Distributed:
    one = spread([1.0] * 3)
    return Distributed(
        ranks=2,
        parallel="flat",
        backend="gloo",
        interconnect="",
        shard_optimizer=False,
        bucket_mib=None,
        steps=3,
        step=one,
        compute=None,
        exposed=None,
        waiting=None,
        transfer=None,
        communication=one,
        disorder_ms=0.0,
        collectives=[],
        rows=[
            RankRow(
                rank=n,
                device="cpu",
                pid=40 + n,
                threads=1,
                step_ms=1.0,
                compute_ms=None,
                exposed_ms=None,
                waiting_ms=None,
                transfer_ms=None,
                communication_ms=1.0,
                last_share=0.0,
                host=n if nodes else None,
            )
            for n in range(2)
        ],
        memory=[],
        hosts=[
            HostRow(host=n, node=node, ranks=1, clock_ahead_ms=0.0, clock_error_ms=0.0)
            for n, node in enumerate(nodes)
        ],
    )


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (("3f2a91", "77aa01"), ""),
        (("3f2a91", "55bb02"), "measured on 3f2a91+55bb02, earlier rounds on 3f2a91+77aa01"),
        ((), "measured on one host, earlier rounds on 3f2a91+77aa01"),
    ],
)
def test_a_round_on_other_nodes_does_not_count(
    sysbench_home: Path, nodes: tuple[str, ...], why: str
) -> None:
    run = create_run(RunSpec(device="cpu", ranks=2, parallel="flat"), ["timing"], repeat=2)
    builder = RecordBuilder(run, run.header(), RUN)
    for number, where in enumerate((("3f2a91", "77aa01"), nodes), 1):
        builder.add(PassStarted(t_ns=number, name="timing", pid=1, round=number))
        data = msgspec.to_builtins(block_on(*where))
        builder.add(ResultReported(block="distributed", data=data))
        builder.add(
            PassEnded(
                name="timing",
                outcome="finished",
                detail="",
                seconds=0.0,
                exit_code=0,
                round=number,
            )
        )
    assert [one.disturbed for one in builder.rounds()] == ["", why]
    assert "2 nodes 3f2a91+77aa01" in " ".join(headline(builder.record()))
