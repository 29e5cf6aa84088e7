"""A refusal from recorded events: what was alive at that instant, whatever came after."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.allocations import ModuleMark, Notes, PhaseMark, Tag
from sysbench.core.memory.block import Recording
from sysbench.core.memory.history import Counters, Frame, History, OomEvent
from sysbench.core.memory.oom import (
    asked_by,
    describe_oom,
    held,
    refused,
    remedy,
    what_fits,
)
from sysbench.core.memory.oom_snapshot import snapshot_at_oom
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.sizes import workspace_bytes
from sysbench.core.record.events import OutOfMemory
from sysbench.core.record.memory import LedgerRow, OomSnapshot
from sysbench.core.record.record import PassRecord
from sysbench.core.spec.spec import RunSpec

MIB = 2**20
BUILD, STEP = 100, 1000
NOTES = Notes(
    phases=[PhaseMark(BUILD, -1, "build"), PhaseMark(900, -1, ""), PhaseMark(STEP, 0, "forward")],
    modules=[ModuleMark(STEP, "model"), ModuleMark(1100, "blocks.3"), ModuleMark(9000, "after")],
    tags=[Tag(150, 4096, "parameters", "blocks.3")],
)
SPEC = RunSpec(device="cpu", batch=32, context=512, memory_limit=300 * MIB)


def history(*moves: tuple[int, int, int], granule: int = 1) -> History:
    """Events as (time, address, change)."""
    columns = np.array(moves, dtype=np.int64).reshape(-1, 3).T
    return History(
        time_ns=columns[0],
        address=columns[1],
        change=columns[2],
        stack=np.zeros(len(moves), dtype=np.int64),
        stacks=[(Frame("", 0, "aten::mm"), Frame("mine/model.py", 7, "forward"))],
        granule=granule,
    )


def recording(recorded: History, refused_ns: int | None, **more: Any) -> Recording:
    refusal = None if refused_ns is None else OomEvent(time_ns=refused_ns, bytes=MIB, op="aten::mm")
    return Recording(source="cpu-profiler", history=recorded, refusal=refusal, **more)


def rows(alive: OomSnapshot) -> dict[str, int]:
    return {row.name: row.bytes for row in alive.ledger}


class TestWhatWasAlive:
    UNWOUND = (
        *((150, 4096, 1000), (1200, 8192, 300), (1300, 9000, 50), (1301, 9000, -50)),
        (1500, 8192, -300),  # after the refusal: the exception dropped it
    )

    def test_what_the_exception_dropped_later_is_in_the_ledger(self) -> None:
        alive = snapshot_at_oom(recording(history(*self.UNWOUND), 1400), NOTES)
        assert rows(alive) == {"parameters": 1000, "temporaries (forward)": 300}
        assert (alive.op, alive.module) == ("aten::mm", "blocks.3")
        assert sum(one.bytes for one in alive.origins) == 1300
        assert [one.bytes for one in alive.largest] == [1000, 300]

    def test_what_a_product_had_taken_when_it_was_refused_more_is_a_temporary(self) -> None:
        # The exception passes through the product, so that all of it goes before that ends.
        refused = replace(history(*self.UNWOUND), product=np.array([-1, 0, 0, 0, 0]))
        alive = snapshot_at_oom(recording(refused, 1400), NOTES)
        assert rows(alive) == {"parameters": 1000, "temporaries (forward)": 300}

    def test_the_timeline_ends_with_the_refusal(self) -> None:
        alive = snapshot_at_oom(recording(history(*self.UNWOUND), 1400), NOTES)
        assert alive.timeline is not None
        assert alive.timeline.live_bytes[-1] == 1300
        assert alive.timeline.phases[-1][0] == "forward"
        assert alive.timeline.phases[-1][2] == alive.refused_ms == (1400 - BUILD) / 1e6

    def test_free_bytes_are_those_of_the_refusal_not_of_the_end(self) -> None:
        made = recording(history(*self.UNWOUND), 1400, free_at_end=500)
        assert snapshot_at_oom(made, NOTES).free_bytes == 200

    def test_without_a_refusal_the_peak_of_the_phase_is_used(self) -> None:
        alive = snapshot_at_oom(recording(history(*self.UNWOUND), None), NOTES)
        assert rows(alive) == {"parameters": 1000, "temporaries (forward)": 350}
        assert "memory peak of the phase" in alive.missing["op"]

    def test_what_no_event_explains_is_the_residual(self) -> None:
        made = recording(
            history((150, 4096, 1000), granule=512), 1400, counters=Counters(end_allocated=4096)
        )
        alive = snapshot_at_oom(made, NOTES)
        assert sum(rows(alive).values()) == 4096
        assert rows(alive)["residual"] == 3072

    def test_blocks_larger_than_their_requests_close_the_ledger(self) -> None:
        recorded = replace(
            history((150, 4096, 1000), granule=512), block=np.array([4096], dtype=np.int64)
        )
        made = recording(recorded, 1400, counters=Counters(end_allocated=4096))
        alive = snapshot_at_oom(made, NOTES)
        assert rows(alive)["blocks larger than asked for"] == 3072
        assert "residual" not in rows(alive)

    def test_what_the_libraries_gave_back_later_was_their_workspace(self) -> None:
        recorded = recording(history(*self.UNWOUND), 1400)
        noted = msgspec.structs.replace(NOTES, workspaces=[8192])
        alive = snapshot_at_oom(recorded, noted)
        assert rows(alive) == {"parameters": 1000, "workspaces": 300}
        assert {one.category for one in alive.origins} == {"parameters", "workspaces"}
        # A block freed before the refusal does not count, even if its address is reused.
        noted = msgspec.structs.replace(NOTES, workspaces=[9000])
        assert rows(snapshot_at_oom(recorded, noted)).keys() == {
            "parameters",
            "temporaries (forward)",
        }

    def test_a_workspace_of_an_earlier_step_has_the_same_name(self) -> None:
        marks = [PhaseMark(2000, 0, ""), PhaseMark(2100, 1, "forward")]
        notes = msgspec.structs.replace(NOTES, phases=[*NOTES.phases, *marks])
        recorded = recording(history((150, 4096, 1000), (1200, 8192, 300)), 2200)
        assert rows(snapshot_at_oom(recorded, notes))["kept between steps"] == 300
        noted = msgspec.structs.replace(notes, workspaces=[8192])
        assert rows(snapshot_at_oom(recorded, noted))["workspaces"] == 300

    def test_cudas_recording_has_the_request_and_its_observer_the_segment(self) -> None:
        made = recording(history(*self.UNWOUND), 1400)
        assert snapshot_at_oom(made, NOTES).requested_bytes is None
        on_cuda = replace(made, source="cuda-snapshot")
        alive = snapshot_at_oom(on_cuda, NOTES)
        assert alive.requested_bytes == MIB
        oom = describe_oom(event(requested_bytes=20 * MIB), alive, SPEC)
        assert oom.requested_bytes == MIB
        assert refused(oom).startswith("tried to allocate 1.00 MiB")
        assert describe_oom(event(requested_bytes=20 * MIB), None, SPEC).requested_bytes == 20 * MIB

    def test_memory_can_run_out_before_anything_was_allocated(self) -> None:
        notes = Notes(phases=[PhaseMark(BUILD, -1, "build")])
        alive = snapshot_at_oom(recording(history(), 200), notes)
        assert (alive.ledger, alive.origins) == ([], [])
        assert alive.timeline is not None

    @given(
        sizes=st.lists(st.integers(1, 2**30), min_size=1, max_size=30),
        kept=st.data(),
    )
    def test_the_ledger_sums_to_what_was_alive(self, sizes: list[int], kept: st.DataObject) -> None:
        """Blocks of random sizes, some freed before the refusal, all freed after it."""
        moves, time_ns, live = [], STEP, {}
        for index, size in enumerate(sizes):
            time_ns += 10
            address = 2**32 * (index + 1)
            moves.append((time_ns, address, size))
            live[address] = size
            if kept.draw(st.booleans()):
                gone = kept.draw(st.sampled_from(sorted(live)))
                time_ns += 10
                moves.append((time_ns, gone, -live.pop(gone)))
        refused_ns = time_ns + 5
        moves += [(refused_ns + 10 + at, a, -size) for at, (a, size) in enumerate(live.items())]
        alive = snapshot_at_oom(recording(history(*moves), refused_ns), NOTES)
        assert sum(rows(alive).values()) == sum(live.values())
        assert rows(alive).keys() <= {"temporaries (forward)"}


def event(**changes: Any) -> OutOfMemory:
    facts: dict[str, Any] = {
        "phase": "forward",
        "requested_bytes": 128 * MIB,
        "free_bytes": None,
        "allocated_bytes": None,
        "limit_bytes": 300 * MIB,
        "capacity_bytes": 300 * MIB,
        "message": "no",
        "stack": ["attention.py:48 naive_attention"],
        "missing": {"op": "not seen", "allocated_bytes": "not counted"},
    }
    return OutOfMemory(**facts | changes)


class TestDescribing:
    ALIVE = snapshot_at_oom(
        recording(history((150, 4096, 1000), (1200, 8192, 300)), 1400, free_at_end=200), NOTES
    )

    def test_what_the_pass_recorded_is_joined_with_what_the_allocator_said(self) -> None:
        oom = describe_oom(event(), self.ALIVE, SPEC)
        assert (oom.op, oom.allocated_bytes, oom.free_bytes) == ("aten::mm", 1300, 200)
        assert oom.missing == {}
        assert oom.ledger == self.ALIVE.ledger

    def test_another_pass_says_what_it_does_not_know(self) -> None:
        oom = describe_oom(event(), None, SPEC)
        assert (oom.op, oom.allocated_bytes, oom.ledger) == (None, None, [])
        assert oom.missing.keys() == {"op", "allocated_bytes", "ledger"}

    def test_what_would_fit_is_the_largest_of_the_closed_form(self) -> None:
        oom = describe_oom(event(), None, SPEC)
        batch, context = oom.would_fit
        assert (batch.key, batch.asked) == ("batch", 32)
        assert (context.key, context.asked) == ("context", 512)
        for one in (batch, context):
            assert one.peak_bytes == predict(SPEC.changed(**{one.key: one.largest})).peak_bytes
            assert one.peak_bytes <= 300 * MIB
            assert predict(SPEC.changed(**{one.key: one.largest + 1})).peak_bytes > 300 * MIB

    def test_what_fits_on_a_gpu_includes_allocator_and_workspaces(self) -> None:
        on_card = RunSpec(model="cs336-2025/small", device="cuda:0", batch=64, context=1024)
        gib = 2**30
        refused_event = event(capacity_bytes=8 * gib)
        other, hopper = (
            describe_oom(refused_event, None, on_card, capability) for capability in ("8.6", "9.0")
        )
        assert other.predicted_peak_bytes is not None and hopper.predicted_peak_bytes is not None
        assert hopper.predicted_peak_bytes - other.predicted_peak_bytes == 2 * (
            workspace_bytes("9.0") - workspace_bytes("8.6")
        )
        for oom, capability in ((other, "8.6"), (hopper, "9.0")):
            context = oom.would_fit[1]
            # The tensors alone of a larger one would still go in: segments take what is left.
            larger = on_card.changed(context=context.largest + 1)
            assert predict(larger, capability).peak_bytes < 8 * gib
            assert context.peak_bytes == (
                predict(on_card.changed(context=context.largest), capability).peak_bytes
            )

    def test_compiled_code_has_no_prediction_and_says_why(self) -> None:
        oom = describe_oom(event(), None, SPEC.changed(compile="default"))
        assert (oom.predicted_peak_bytes, oom.would_fit) == (None, [])
        assert "torch.compile" in oom.missing["would_fit"]

    def test_sentences(self) -> None:
        oom = describe_oom(event(largest_free_bytes=2 * MIB), self.ALIVE, SPEC)
        assert refused(oom).startswith("tried to allocate 128 MiB in forward, 200 B free, the all")
        assert asked_by(oom) == "aten::mm in blocks.3"
        assert held(oom) == "1.27 KiB of 300 MiB allocated"
        on_card = describe_oom(
            event(allocated_bytes=70 * MIB, reserved_bytes=110 * MIB), None, SPEC
        )
        assert held(on_card) == "70.0 MiB of 300 MiB allocated, 40.0 MiB reserved and free"
        assert "batch 7 (not 32) or context 182 (not 512) fits into 300 MiB" in what_fits(oom)

    def test_a_spec_that_should_fit_gets_no_smaller_size(self) -> None:
        small = SPEC.changed(batch=1, context=8)
        assert "this spec fits into 300 MiB" in what_fits(describe_oom(event(), None, small))

    def test_a_limit_below_the_weights_fits_nothing(self) -> None:
        oom = describe_oom(event(capacity_bytes=MIB), None, SPEC)
        assert "not even batch 1 or context 1" in what_fits(oom)

    @pytest.mark.parametrize(
        ("phase", "ledger", "words"),
        [
            ("optimizer", {"parameters": 60, "gradients": 60, "activations": 1}, "Use another"),
            ("optimizer", {}, "Use another optimizer, a lower precision or shards: requests of"),
            ("optimizer", {"parameters": 60, "temporaries (optimizer)": 60}, "cannot help"),
            # A weight's gradient is larger than all that batch and context decide.
            ("backward", {"parameters": 90, "gradients": 30, "activations": 1}, "1.00 MiB of the"),
            ("backward", {"parameters": 90, "activations": 70}, "Lower batch or context."),
            ("forward", {"parameters": 120, "activations": 1}, "Lower batch or context."),
            ("forward", {}, "Lower batch or context."),
            ("build", {"parameters": 120}, "Use another"),
        ],
    )
    def test_advice_asks_who_holds_the_memory(
        self, phase: str, ledger: dict[str, int], words: str
    ) -> None:
        rows = [LedgerRow(name, size * MIB) for name, size in ledger.items()]
        spec = SPEC.changed(compile="default")  # without a prediction of what fits
        oom = describe_oom(event(phase=phase), OomSnapshot(free_bytes=70 * MIB, ledger=rows), spec)
        assert words in remedy(oom)
        assert ("batch or context" in remedy(oom)) == remedy(oom).startswith("Lower")

    def test_sizes_that_fit_are_the_advice_if_there_are_any(self) -> None:
        oom = describe_oom(event(phase="optimizer"), self.ALIVE, SPEC)
        assert remedy(oom).startswith("By the closed form batch 7 (not 32)")


def test_a_record_of_before_is_still_read() -> None:
    refusal = {
        **{"event": "OutOfMemory", "t_ns": 5, "phase": "forward", "requested_bytes": 7},
        **{"free_bytes": None, "allocated_bytes": None, "message": "no", "stack": []},
    }
    old = {"name": "timing", "outcome": "oom", "detail": "", "seconds": 1.0, "oom": refusal}
    oom = msgspec.convert(old, PassRecord).oom
    assert oom is not None
    assert (oom.requested_bytes, oom.ledger) == (7, [])
    assert refusal.items() <= msgspec.to_builtins(oom).items()


class TestRefusalInASnapshot:
    FRAME = MappingProxyType({"filename": "mine/model.py", "line": 7, "name": "forward"})

    def event(self, size: object) -> dict[str, Any]:
        frames = [dict(self.FRAME)]
        return {"action": "oom", "size": size, "device_free": 3, "time_us": 9, "frames": frames}

    def test_the_last_one_of_the_device_counts(self) -> None:
        snapshot = snapshot_from({"device_traces": [[self.event(1), self.event(512)], []]})
        found = snapshot.refusal(0)
        assert found is not None
        assert (found.bytes, found.time_ns) == (512, 9500)
        assert found.stack == (Frame("mine/model.py", 7, "forward"),)
        assert snapshot.refusal(1) is None
        assert snapshot.refusal(2) is None

    def test_another_form_is_a_typed_error(self) -> None:
        with pytest.raises(DamagedFileError):
            snapshot_from({"device_traces": [[self.event("many")]]})
