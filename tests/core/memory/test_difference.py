"""Who holds the peak, and what differs between two peaks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.memory.peak_difference import memory_difference
from sysbench.core.record.memory import Origin
from sysbench.core.record.record import LedgerRow, Memory
from sysbench.core.runs.run_directory import RunDirectory, load_record

NAMES = st.sampled_from(["parameters", "gradients", "activations", "inputs"])
ROWS = st.dictionaries(NAMES, st.integers(0, 2**40))


@pytest.fixture(scope="module")
def memory(tiny_run: RunDirectory) -> Memory:
    found = load_record(tiny_run).memory
    assert found is not None
    return found


def test_origins_of_a_real_run_add_up_to_its_peak(memory: Memory) -> None:
    assert sum(one.bytes for one in memory.origins) == memory.peak_allocated_bytes
    sizes = [one.bytes for one in memory.origins]
    assert sizes == sorted(sizes, reverse=True)
    assert len({(one.category, one.phase, tuple(one.stack)) for one in memory.origins}) == len(
        sizes
    )


def test_origins_of_a_category_add_up_to_its_row(memory: Memory) -> None:
    rows = {row.name: row.bytes for row in memory.ledger if row.bytes}
    held: dict[str, int] = {}
    for one in memory.origins:
        held[one.category] = held.get(one.category, 0) + one.bytes
    assert held == rows


def test_an_origin_says_where_in_the_model_it_was_asked_for(memory: Memory) -> None:
    largest = next(one for one in memory.origins if one.category == "activations")
    assert any("workloads/" in line for line in largest.stack)
    assert not any("__main__" in line for line in largest.stack)


def test_a_run_does_not_differ_from_itself(memory: Memory) -> None:
    difference = memory_difference(memory, memory)
    assert not (difference.rows or difference.modules or difference.origins)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(a=ROWS, b=ROWS)
def test_rows_add_up_to_the_change_of_the_peak(
    memory: Memory, a: dict[str, int], b: dict[str, int]
) -> None:
    before, after = (
        msgspec.structs.replace(memory, ledger=[LedgerRow(*row) for row in rows.items()])
        for rows in (a, b)
    )
    found = memory_difference(before, after).rows
    change = sum(b.values()) - sum(a.values())
    assert sum(row.b_bytes - row.a_bytes for row in found) == change
    sizes = [abs(row.b_bytes - row.a_bytes) for row in found]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 not in sizes


def test_growth_of_one_stack_is_seen_in_blocks_and_bytes(memory: Memory) -> None:
    def holding(*origins: Origin) -> Memory:
        return msgspec.structs.replace(memory, origins=list(origins))

    stack = ["model.py:3 forward"]
    before = holding(Origin("activations", "forward", 100, 1, stack))
    after = holding(
        Origin("activations", "forward", 300, 3, stack),
        Origin("activations", "backward", 50, 1, stack),
    )
    grown, new = memory_difference(before, after).origins
    assert (grown.a_blocks, grown.b_blocks, grown.a_bytes, grown.b_bytes) == (1, 3, 100, 300)
    assert (new.phase, new.a_bytes, new.a_blocks, new.b_bytes) == ("backward", 0, 0, 50)
