"""Rules on several ranks: shared hardware, stragglers, exposed communication, doubtful files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from sysbench.core.formatting import counted, percent
from sysbench.core.record.record import SEVERITIES, Distributed, Finding, Record

WAITING_LIMIT = 0.05
LAST_LIMIT = 0.9
DISORDER_LIMIT_MS = 0.05
EXPOSED_LIMIT = 0.2
ODD_CALL = "file-odd-call"
"""Of a file by itself; with others, it is the wait for a rank."""
MAX_FILES_NAMED = 7


def no_interconnect(record: Record) -> Finding | None:
    """Ranks on one CPU share its cores and communicate through the loopback."""
    block = record.distributed
    if block is None or record.spec["device"] != "cpu" or block.hosts:
        return None
    return Finding(
        rule="no-interconnect",
        severity="note",
        verdict=f"{block.ranks} ranks share one CPU: communication uses this machine's loopback.",
        why="The ranks share cores and memory, so communication slows computation. The times do "
        "not show how strategies compare on GPUs.",
        next="Use this to check that a strategy works; compare strategies on GPUs.",
        numbers={"ranks": block.ranks},
    )


def straggler(record: Record) -> Finding | None:
    """One rank is nearly always last, and the others wait for it."""
    block = record.distributed
    if block is None or block.waiting is None:
        return None
    share = block.waiting.mean_ms / block.step.mean_ms
    last = max(block.rows, key=lambda row: row.last_share)
    error_ms = _error_between_hosts(block)
    if share < WAITING_LIMIT or last.last_share < LAST_LIMIT or block.waiting.mean_ms <= error_ms:
        return None
    error = f" The clock error between hosts is {error_ms:.2g} ms." if error_ms else ""
    where = f"host {last.host}, {last.device}" if block.hosts else last.device
    return Finding(
        rule="straggler",
        severity="warning",
        verdict=f"Rank {last.rank} is a straggler: the others wait for {percent(share, 0)} "
        "of the step.",
        why=f"It is last to reach {percent(last.last_share, 0)} of the collectives. The others "
        f"wait and transfer nothing, so a faster link would not help.{error}",
        next=f"Check what else runs on {where}, and its clocks.",
        numbers={
            **{"rank": last.rank, "waiting_share": share, "last_share": last.last_share},
            **({"clock_error_ms": error_ms} if block.hosts else {}),
        },
        cost=share,
    )


def _error_between_hosts(block: Distributed) -> float:
    """Maximum clock error between two hosts in ms; 0 on one host."""
    errors = sorted(host.clock_error_ms for host in block.hosts)
    return sum(errors[-2:])


def exposed(record: Record) -> Finding | None:
    """Computation waits for transfers for much of the step."""
    block = record.distributed
    if block is None or block.transfer is None or block.all_reduce is not None:
        return None
    share = block.transfer.mean_ms / block.step.mean_ms
    if share < EXPOSED_LIMIT:
        return None
    hidden = 1 - block.transfer.mean_ms / block.communication.mean_ms
    may_bucket = block.parallel in ("naive", "flat", "overlap")
    return Finding(
        rule="exposed-communication",
        severity="note",
        verdict=f"Computation waits for transfers during {percent(share, 0)} of the step.",
        why=f"{block.transfer.mean_ms:.4g} ms of {block.step.mean_ms:.4g} ms; computation overlaps "
        f"with {percent(hidden, 0)} of the communication.",
        next=f"Try {'parallel=bucketed, parallel=ddp or ' if may_bucket else ''}a larger batch on "
        "each rank.",
        numbers={"transfer_share": share, "hidden_share": hidden},
        cost=share,
    )


def clocks_disagree(record: Record) -> Finding | None:
    """A collective ended before all ranks reached it: their clocks differ."""
    block = record.distributed
    if block is None:
        return None
    if block.disorder_ms <= max(DISORDER_LIMIT_MS, _error_between_hosts(block)):
        return None
    return Finding(
        rule="clocks-disagree",
        severity="warning",
        verdict=f"The clocks of the ranks differ by at least {block.disorder_ms:.2g} ms.",
        why="An all-reduce ended before its last rank reached it, which is impossible.",
        next="Waiting and transfer have at least this error; the step time is correct.",
        numbers={"disorder_ms": block.disorder_ms},
    )


def doubts_of_files(found: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Return one finding per rule on what is wrong with the files, with the words of each file.

    Args:
        found: All findings of each file, by its name.
    """
    by_rule: defaultdict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for file, findings in found.items():
        for each in findings:
            if (each.is_health and each.rule != ODD_CALL) or each.severity == "problem":
                by_rule[each.rule].append((file, each))
    doubts = []
    for files in by_rule.values():
        (first, finding), *others = files
        words = [f"{file}: {each.verdict}" for file, each in others[:MAX_FILES_NAMED]]
        more = len(others) - len(words)
        why = [*words, f"So have {counted(more, 'more file')}."] if more else words
        doubts.append(
            msgspec.structs.replace(
                finding, verdict=f"{first}: {finding.verdict}", why=" ".join(why), next="", cost=0.0
            )
        )
    return sorted(doubts, key=lambda each: SEVERITIES.index(each.severity))


RULES = (no_interconnect, straggler, exposed, clocks_disagree)
