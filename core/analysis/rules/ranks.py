"""Rules on several ranks: shared hardware, stragglers, exposed communication."""

from __future__ import annotations

from ...formatting import percent
from ...record.record import Finding, Record
from .rule import Rule

WAITING_LIMIT = 0.05
LAST_LIMIT = 0.9
DISORDER_LIMIT_MS = 0.05
EXPOSED_LIMIT = 0.2


def no_interconnect(record: Record) -> Finding | None:
    """Ranks on one CPU share its cores and communicate through the loopback."""
    block = record.distributed
    if block is None or record.spec["device"] != "cpu":
        return None
    return Finding(
        rule="no-interconnect",
        severity="note",
        verdict=f"{block.ranks} ranks on one CPU: the numbers are of this machine's loopback.",
        why="They share its cores and memory, so communication takes time from computing, and "
        "nothing here says how strategies compare between GPUs.",
        next="Use it to see that a strategy works; compare strategies on GPUs.",
        numbers={"ranks": block.ranks},
    )


def straggler(record: Record) -> Finding | None:
    """One rank is nearly always last, and the others stand still for it."""
    block = record.distributed
    if block is None or block.waiting is None:
        return None
    share = block.waiting.mean_ms / block.step.mean_ms
    last = max(block.rows, key=lambda row: row.last_share)
    if share < WAITING_LIMIT or last.last_share < LAST_LIMIT:
        return None
    return Finding(
        rule="straggler",
        severity="warning",
        verdict=f"Rank {last.rank} keeps the others waiting: {percent(share, 0)} of the step.",
        why=f"It is the last to reach {percent(last.last_share, 0)} of the collectives; the time "
        "that others stand still for it is no transfer, and a faster link would not help.",
        next=f"Look at what else runs on {last.device}, and at its clocks.",
        numbers={"rank": last.rank, "waiting_share": share, "last_share": last.last_share},
    )


def exposed(record: Record) -> Finding | None:
    """Computing stands still while data moves for much of the step."""
    block = record.distributed
    if block is None or block.transfer is None or block.all_reduce is not None:
        return None
    share = block.transfer.mean_ms / block.step.mean_ms
    if share < EXPOSED_LIMIT:
        return None
    hidden = 1 - block.transfer.mean_ms / block.communication.mean_ms
    return Finding(
        rule="exposed-communication",
        severity="note",
        verdict=f"Computing stands still for {percent(share, 0)} of the step while data moves.",
        why=f"{block.transfer.mean_ms:.4g} ms of {block.step.mean_ms:.4g} ms; of all the time in "
        f"which data moves, {percent(hidden, 0)} is behind computing.",
        next="Try parallel = bucketed or ddp, or a larger batch on each rank.",
        numbers={"transfer_share": share, "hidden_share": hidden},
    )


def clocks_disagree(record: Record) -> Finding | None:
    """A collective ended before all ranks had reached it: their clocks differ."""
    block = record.distributed
    if block is None or block.disorder_ms <= DISORDER_LIMIT_MS:
        return None
    return Finding(
        rule="clocks-disagree",
        severity="warning",
        verdict=f"The ranks' clocks are off by {block.disorder_ms:.2g} ms or more.",
        why="An all-reduce was over before its last rank had reached it, which cannot be.",
        next="Take waiting and transfer for no more exact than that; the step is right.",
        numbers={"disorder_ms": block.disorder_ms},
    )


RULES: tuple[Rule, ...] = (no_interconnect, straggler, exposed, clocks_disagree)
