"""Join two clocks by probe allocations: the arithmetic, and the owners that follow."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.memory.allocations import Notes, PhaseMark, Sounding, Tag, join_clocks
from sysbench.core.memory.block import Recording, describe_memory
from sysbench.core.memory.history import History, OomEvent
from sysbench.core.memory.oom_snapshot import snapshot_at_oom

START_NS = 1_800_000_000_000_000_000
MS = 1_000_000
ADDRESS, OTHER, SOUNDED = 4096, 8192, 2**30
ODD = 771


def history_of(*moves: tuple[int, int, int]) -> History:
    """Events as (nanoseconds since the start, address, signed bytes)."""
    times, addresses, changes = np.array(moves, dtype=np.int64).T
    return History(
        time_ns=START_NS + times,
        address=addresses,
        change=changes,
        stack=np.full(len(moves), -1),
        stacks=[],
    )


def sounding(at_ns: int, half_ns: int = 2000, size: int = ODD) -> Sounding:
    return Sounding(START_NS + at_ns - half_ns, START_NS + at_ns + half_ns, size)


def sounded(at_ns: int, size: int = ODD) -> list[tuple[int, int, int]]:
    return [(at_ns, SOUNDED, size), (at_ns + 900, SOUNDED, -size)]


def step(first_ns: int, offset_ns: int) -> tuple[History, Notes]:
    """A step in which one address is a saved tensor, then an output, 30 µs later. The allocator's
    clock is off, and two probes measure by how much."""
    begin, end = first_ns + 10 * MS, first_ns + 30 * MS
    moves = [
        *sounded(first_ns),
        (begin + 10_000, ADDRESS, 512),
        (begin + 35_000, ADDRESS, -512),
        (begin + 40_000, ADDRESS, 512),
        (begin + 70_000, OTHER, 1024),
        (begin + 80_000, OTHER, -1024),
        (begin + 90_000, ADDRESS, -512),
        *sounded(end),
    ]
    history = history_of(*((at + offset_ns, address, size) for at, address, size in moves))
    notes = Notes(
        phases=[
            PhaseMark(START_NS + first_ns + MS, -1, "build"),
            PhaseMark(START_NS + first_ns + 2 * MS, -1, ""),
            PhaseMark(START_NS + begin, 0, "forward"),
            PhaseMark(START_NS + begin + 100_000, 0, ""),
        ],
        tags=[
            Tag(START_NS + begin + 12_000, ADDRESS, "activations", "blocks.0"),
            Tag(START_NS + begin + 42_000, ADDRESS, "outputs", "model"),
        ],
        soundings=[sounding(first_ns), sounding(end)],
    )
    return history, notes


def owners(history: History, notes: Notes) -> set[str]:
    memory = describe_memory(Recording(source="cuda-snapshot", history=history), notes)
    return {name for name, amounts in memory.timeline.categories.items() if any(amounts)}


@pytest.mark.parametrize("offset_ns", [-300_000, -40_000, 0, 40_000, 300_000])
def test_owners_are_right_however_far_the_clocks_are_apart(offset_ns: int) -> None:
    history, notes = step(0, offset_ns)
    assert owners(history, notes) == {"activations", "outputs", "temporaries (forward)"}
    memory = describe_memory(Recording(source="cuda-snapshot", history=history), notes)
    assert memory.clock_offset_us == pytest.approx(offset_ns / 1e3, abs=0.5)
    assert memory.events == len(history) - 4


def test_without_soundings_an_address_that_is_used_again_takes_the_wrong_owner() -> None:
    history, notes = step(0, 40_000)
    untold = msgspec.structs.replace(notes, soundings=[])
    assert "outputs" not in owners(history, untold)
    memory = describe_memory(Recording(source="cuda-snapshot", history=history), untold)
    assert memory.clock_offset_us is None
    assert memory.missing["clock_offset_us"]


def test_the_clocks_are_joined_where_memory_ran_out_too() -> None:
    history, notes = step(0, 300_000)
    cut = replace(history, **{name: getattr(history, name)[:5] for name in COLUMNS})
    unended = msgspec.structs.replace(
        notes, phases=notes.phases[:-1], soundings=notes.soundings[:1]
    )
    refusal = OomEvent(time_ns=int(cut.time_ns[-1]) + 10_000, bytes=MS)
    recording = Recording(source="cuda-snapshot", history=cut, refusal=refusal)
    alive = snapshot_at_oom(recording, unended)
    assert {row.name: row.bytes for row in alive.ledger} == {"outputs": 512}


COLUMNS = ("time_ns", "address", "change", "stack")


@given(st.integers(-MS, MS), st.integers(-MS, MS), st.integers(10 * MS, 10**12))
def test_the_offset_changes_evenly_between_the_ends(
    begin_off: int, drift: int, end_ns: int
) -> None:
    history = history_of(*sounded(begin_off), *sounded(end_ns + begin_off + drift))
    marks = [PhaseMark(START_NS + at, 0, "x") for at in (0, end_ns // 2, end_ns)]
    join = join_clocks(history, Notes(phases=marks, soundings=[sounding(0), sounding(end_ns)]))
    pairs = zip(marks, join.notes.phases, strict=True)
    moved = [after.time_ns - before.time_ns for before, after in pairs]
    assert [one.offset_ns for one in join.offsets] == [moved[0], moved[-1]]
    assert moved[1] == pytest.approx((moved[0] + moved[2]) / 2, abs=1 + abs(drift) / end_ns)


def test_the_probe_with_the_smallest_error_sets_the_offset() -> None:
    moves = [(90_000, SOUNDED, 771), (90_500, SOUNDED, -771), *sounded(201_000, 773)]
    waited, quick = sounding(50_000, 50_000, 771), sounding(200_000, 1500, 773)
    not_found, at_end = sounding(210_000, 100, 775), sounding(9 * MS)
    notes = Notes(soundings=[waited, quick, not_found, at_end])
    join = join_clocks(history_of(*moves, *sounded(9 * MS + 2000)), notes)
    assert [(one.offset_ns, one.error_ns) for one in join.offsets] == [(1000, 2000), (2000, 2500)]
    assert len(join.history) == 0


def test_soundings_that_the_ring_dropped_leave_the_other_end() -> None:
    moves = sounded(5 * MS + 7000)
    notes = Notes(soundings=[sounding(0, size=773), sounding(5 * MS)])
    join = join_clocks(history_of(*moves), notes)
    assert [one.offset_ns for one in join.offsets] == [7000]
    nothing = join_clocks(history_of((1, ADDRESS, 8)), notes)
    assert (nothing.offsets, nothing.offset_us) == ([], None)
