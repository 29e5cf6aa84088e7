"""Owners of memory in the record of one small hand-written step."""

from __future__ import annotations

import numpy as np
import pytest

from sysbench.core.memory.allocations import (
    CLOCK_SLACK_NS,
    ModuleMark,
    Notes,
    PhaseMark,
    Tag,
    replay_allocations,
)
from sysbench.core.memory.block import Recording, describe_memory
from sysbench.core.memory.history import Counters, Frame, History
from sysbench.core.memory.step_memory import format_stack
from sysbench.core.record.record import LedgerRow, Memory

START_NS = 1_800_000_000_000_000_000
WEIGHT, STATE, SAVED, LOGITS, WORKSPACE, GRADIENT, SCRATCH = (n * 2**20 for n in range(1, 8))


def history_of(*moves: tuple[int, int, int], granule: int = 1) -> History:
    """A history from (microseconds, address, signed bytes), each with a stack of its own."""
    times, addresses, changes = np.array(moves, dtype=np.int64).T
    return History(
        time_ns=START_NS + times * 1000,
        address=addresses,
        change=changes,
        stack=np.arange(len(moves)),
        stacks=[(Frame("model.py", number, "forward"),) for number in range(len(moves))],
        granule=granule,
    )


def at(microseconds: int) -> int:
    return START_NS + microseconds * 1000


def phases(step: int, begin: int) -> list[PhaseMark]:
    """forward, backward and optimizer of 100 µs each."""
    names = ("forward", "backward", "optimizer", "")
    return [PhaseMark(at(begin + 100 * n), step, name) for n, name in enumerate(names)]


def two_steps(granule: int = 1) -> History:
    """Build at 0, a first step at 1000 and a steady one at 2000 µs."""
    return history_of(
        (10, WEIGHT, 1000),
        (20, SCRATCH, 5000),
        (30, SCRATCH, -5000),
        (1010, SAVED, 3000),
        (1020, WORKSPACE, 50),
        (1110, GRADIENT, 1000),
        (1120, SAVED, -3000),
        (1210, STATE, 2000),
        (1220, SCRATCH, 700),
        (1230, SCRATCH, -700),
        (1240, GRADIENT, -1000),
        (2010, SAVED, 3000),
        (2020, LOGITS, 500),
        (2110, SCRATCH, 100),
        (2120, GRADIENT, 1000),
        (2130, SAVED, -3000),
        (2140, SCRATCH, -100),
        (2210, SCRATCH, 700),
        (2220, SCRATCH, -700),
        (2230, GRADIENT, -1000),
        (2240, LOGITS, -500),
        granule=granule,
    )


def notes() -> Notes:
    return Notes(
        phases=[
            PhaseMark(at(0), -1, "build"),
            PhaseMark(at(800), -1, ""),
            *phases(0, 1000),
            *phases(1, 2000),
        ],
        modules=[
            ModuleMark(at(1005), "blocks.0.ffn"),
            ModuleMark(at(2005), "blocks.0"),
            ModuleMark(at(2105), "blocks.0.ffn"),
        ],
        tags=[
            Tag(at(900), WEIGHT, "parameters", "blocks.0.ffn"),
            Tag(at(1011), SAVED, "activations", "blocks.0.ffn"),
            Tag(at(1115), GRADIENT, "gradients", "blocks.0.ffn"),
            Tag(at(1215), STATE, "optimizer state", "blocks.0.ffn"),
            Tag(at(2011), SAVED, "activations", "blocks.0"),
            Tag(at(2021), LOGITS, "outputs", "model"),
            Tag(at(2121), GRADIENT, "gradients", "blocks.0.ffn"),
            Tag(at(2215), STATE, "optimizer state", "blocks.0.ffn"),
        ],
    )


def rows(ledger: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in ledger if row.bytes}


@pytest.fixture
def memory() -> Memory:
    return describe_memory(Recording(source="cpu-profiler", history=two_steps()), notes())


def test_the_peak_is_the_steady_steps(memory: Memory) -> None:
    assert memory.peak_allocated_bytes == 1000 + 2000 + 3000 + 500 + 50 + 100 + 1000
    assert memory.peak_phase == "backward"
    assert memory.peak_ms == pytest.approx(2.12)
    assert memory.first_step_peak_bytes == 1000 + 3000 + 50 + 1000
    assert memory.end_allocated_bytes == 1000 + 2000 + 50
    assert memory.baseline_bytes == 0


def test_each_column_is_the_ledger_of_its_instant(memory: Memory) -> None:
    assert {name: rows(ledger) for name, ledger in memory.columns.items()} == {
        "after build": {"parameters": 1000},
        "first step": {
            "parameters": 1000,
            "gradients": 1000,
            "activations": 3000,
            "kept between steps": 50,
        },
        "after warm-up": {
            "parameters": 1000,
            "optimizer state": 2000,
            "kept between steps": 50,
        },
        "end of forward": {
            "parameters": 1000,
            "optimizer state": 2000,
            "activations": 3000,
            "outputs": 500,
            "kept between steps": 50,
        },
        "peak": {
            "parameters": 1000,
            "optimizer state": 2000,
            "gradients": 1000,
            "activations": 3000,
            "outputs": 500,
            "temporaries (backward)": 100,
            "kept between steps": 50,
        },
        "steady end": {"parameters": 1000, "optimizer state": 2000, "kept between steps": 50},
    }


def test_columns_have_the_same_rows_and_the_peak_is_the_ledger(memory: Memory) -> None:
    names = {tuple(row.name for row in ledger) for ledger in memory.columns.values()}
    assert len(names) == 1
    assert memory.ledger == memory.columns["peak"]
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes


def test_modules_count_their_children_and_only_the_steady_step(memory: Memory) -> None:
    found = {
        row.module: (
            row.parameter_bytes,
            row.gradient_bytes,
            row.optimizer_bytes,
            row.activation_bytes,
        )
        for row in memory.modules
    }
    assert found == {
        "model": (1000, 1000, 2000, 3000),
        "blocks": (1000, 1000, 2000, 3000),
        "blocks.0": (1000, 1000, 2000, 3000),
        "blocks.0.ffn": (1000, 1000, 2000, 0),
    }
    assert memory.modules[0].module == "model"


def test_the_largest_come_first_with_their_lives_and_stacks(memory: Memory) -> None:
    largest = memory.largest[0]
    assert (largest.bytes, largest.category, largest.module) == (3000, "activations", "blocks.0")
    assert (largest.born_ms, largest.died_ms) == pytest.approx((2.01, 2.13))
    assert largest.stack == ["model.py:11 forward"]
    assert [one.bytes for one in memory.largest] == [3000, 2000, 1000, 1000, 500, 100, 50]
    weight = memory.largest[2]
    assert (weight.category, weight.phase, weight.died_ms) == ("parameters", "build", None)
    scratch = memory.largest[5]
    assert (scratch.phase, scratch.module) == ("backward", "blocks.0.ffn")


def test_the_timeline_keeps_the_peak_and_sums(memory: Memory) -> None:
    timeline = memory.timeline
    assert max(timeline.live_bytes) == memory.peak_allocated_bytes
    assert timeline.t_ms == sorted(timeline.t_ms)
    for index, live in enumerate(timeline.live_bytes):
        assert sum(amounts[index] for amounts in timeline.categories.values()) == live
    assert [phase[0] for phase in timeline.phases] == [
        "build",
        *("forward", "backward", "optimizer") * 2,
    ]
    assert timeline.phases[1] == pytest.approx(("forward", 1.0, 1.1))


def test_scratch_of_the_build_is_a_temporary(memory: Memory) -> None:
    assert max(memory.timeline.categories["temporaries (build)"]) == 5000


def test_a_long_history_is_thinned_without_losing_a_maximum() -> None:
    sizes = np.random.default_rng(0).integers(1, 10**6, 5000)
    moves = [
        move
        for number, size in enumerate(sizes.tolist())
        for move in ((2 * number, 4096, size), (2 * number + 1, 4096, -size))
    ]
    residents = replay_allocations(history_of(*moves), Notes())
    memory = describe_memory(Recording(source="cpu-profiler", history=residents.history), Notes())
    assert len(memory.timeline.t_ms) <= 400
    assert max(memory.timeline.live_bytes) == sizes.max() == memory.peak_allocated_bytes


class TestCudaCounters:
    def test_rounding_is_a_row_and_so_is_what_nothing_explains(self) -> None:
        requested = 1000 + 2000 + 3000 + 500 + 50 + 100 + 1000
        blocks = 1024 + 2048 + 3072 + 512 + 512 + 512 + 1024
        recording = Recording(
            source="cuda-snapshot",
            history=two_steps(granule=512),
            counters=Counters(
                peak_allocated=blocks + 4096, peak_reserved=2**21, end_allocated=2**12
            ),
        )
        memory = describe_memory(recording, notes())
        ledger = rows(memory.ledger)
        assert memory.peak_allocated_bytes == blocks + 4096 == sum(ledger.values())
        assert ledger["parameters"] == 1000
        assert ledger["rounding to 512-byte blocks"] == blocks - requested
        assert ledger["residual"] == memory.residual_bytes == 4096
        assert "blocks larger than asked for" not in ledger
        assert memory.peak_reserved_bytes == 2**21
        assert memory.end_allocated_bytes == 2**12

    def test_without_counters_the_blocks_are_the_rounded_requests(self) -> None:
        recording = Recording(source="cuda-snapshot", history=two_steps(granule=512))
        memory = describe_memory(recording, notes())
        assert memory.peak_allocated_bytes == sum(row.bytes for row in memory.ledger)
        assert memory.peak_allocated_bytes % 512 == 0


class TestOwners:
    def test_the_strongest_of_several_owners_counts(self) -> None:
        history = history_of((10, WEIGHT, 8))
        tags = [
            Tag(at(20), WEIGHT, "activations", "blocks.0"),
            Tag(at(30), WEIGHT, "buffers", "model"),
            Tag(at(40), WEIGHT, "outputs", "model"),
        ]
        residents = replay_allocations(history, Notes(phases=phases(0, 0), tags=tags))
        assert rows(residents.rows_at(1)) == {"buffers": 8}

    def test_a_tag_marks_the_life_it_falls_into(self) -> None:
        history = history_of(
            (10, SAVED, 8), (20, SAVED, -8), (30, SAVED, 16), (40, SAVED, -16), (50, SAVED, 32)
        )
        tags = [Tag(at(35), SAVED, "activations", "blocks.0")]
        residents = replay_allocations(history, Notes(phases=phases(0, 0), tags=tags))
        assert [rows(residents.rows_at(instant)) for instant in (1, 3, 5)] == [
            {"temporaries (forward)": 8},
            {"activations": 16},
            {"kept between steps": 32},
        ]

    @pytest.mark.parametrize(
        ("late_ns", "owned"), [(1, True), (CLOCK_SLACK_NS, True), (CLOCK_SLACK_NS + 1, False)]
    )
    def test_clocks_may_disagree_a_little(self, late_ns: int, owned: bool) -> None:
        history = history_of((500, SAVED, 8))
        tags = [Tag(at(500) - late_ns, SAVED, "activations", "blocks.0")]
        residents = replay_allocations(history, Notes(phases=phases(0, 450), tags=tags))
        assert ("activations" in rows(residents.rows_at(1))) is owned

    def test_what_was_there_before_the_recording_can_have_an_owner(self) -> None:
        history = history_of((10, WEIGHT, -8), (20, STATE, -16))
        tags = [Tag(at(5), WEIGHT, "parameters", "head")]
        residents = replay_allocations(history, Notes(phases=phases(0, 0), tags=tags))
        assert rows(residents.rows_at(0)) == {"parameters": 8, "there before the recording": 16}


class TestStacks:
    def test_frames_of_torch_and_of_the_recording_are_dropped(self) -> None:
        stack = (
            Frame("", 0, "aten::mm"),
            Frame(
                "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward"
            ),
            Frame("torch/nn/modules/module.py", 1779, "_call_impl"),
            Frame("/home/me/model.py", 12, "forward"),
            Frame("/opt/sysbench/core/worker/memory/tagger.py", 150, "__torch_dispatch__"),
            Frame("/home/me/torch/train.py", 3, "main"),
            Frame("<frozen runpy>", 88, "_run_code"),
        )
        assert format_stack(stack) == [
            "aten::mm",
            "model.py:12 forward",
            "torch/train.py:3 main",
        ]

    def test_those_of_another_system_are_shortened_and_sorted_out_alike(self) -> None:
        stack = (
            Frame("C:\\Users\\me\\venv\\Lib\\site-packages\\torch\\nn\\linear.py", 1, "forward"),
            Frame("C:\\Users\\me\\work\\model.py", 12, "forward"),
            Frame("\\\\server\\users\\me\\train.py", 3, "main"),
        )
        assert format_stack(stack) == ["work/model.py:12 forward", "train.py:3 main"]

    def test_they_stay_when_there_are_no_others(self) -> None:
        stack = (Frame("", 0, "aten::zeros"), Frame("torch/optim/adamw.py", 5, "step"))
        assert format_stack(stack) == ["aten::zeros", "optim/adamw.py:5 step"]
