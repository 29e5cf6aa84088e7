"""Each rule on memory, on the real run with one change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sysbench.core.findings import memory_rules as rules
from sysbench.core.predict.closed_form import predict
from sysbench.core.record.record import Finding, LedgerRow, Memory, Record, Timing
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec

GIB = 2**30


@pytest.fixture
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


@pytest.fixture
def memory(record: Record) -> Memory:
    assert record.memory is not None
    return record.memory


def bent(struct: Any, **changes: object) -> Any:
    return msgspec.structs.replace(struct, **changes)


def with_row(memory: Memory, name: str, count: int) -> Memory:
    """The block with one row of the ledger at the peak replaced."""
    rows = [row for row in memory.ledger if row.name != name] + [LedgerRow(name, count)]
    made: Memory = bent(memory, ledger=rows)
    return made


def test_real_run_has_no_finding(record: Record) -> None:
    assert [rule(record) for rule in rules.RULES] == [None] * len(rules.RULES)


def test_no_rule_needs_a_memory_pass(record: Record) -> None:
    assert [rule(bent(record, memory=None)) for rule in rules.RULES] == [None] * len(rules.RULES)


@pytest.mark.parametrize("row", ["activations", "outputs"])
def test_output_of_the_previous_step_alive(record: Record, memory: Memory, row: str) -> None:
    before = [*memory.columns["after warm-up"], LedgerRow(row, memory.peak_allocated_bytes // 4)]
    columns = memory.columns | {"after warm-up": before}
    finding = rules.previous_output_alive(bent(record, memory=bent(memory, columns=columns)))
    assert finding is not None
    assert finding.rule == "previous-output-alive"
    assert "still referenced" in finding.why


@pytest.mark.parametrize(
    ("step", "expected"), [("forward", True), ("inference", True), ("train", False)]
)
def test_forward_in_grad_mode(record: Record, step: str, expected: bool) -> None:
    finding = rules.forward_in_grad_mode(bent(record, spec=record.spec | {"step": step}))
    assert (finding is not None) is expected


def test_forward_without_a_graph(record: Record, memory: Memory) -> None:
    spec = record.spec | {"step": "inference"}
    clean = with_row(memory, "activations", 0)
    assert rules.forward_in_grad_mode(bent(record, spec=spec, memory=clean)) is None


@pytest.mark.parametrize("row", ["optimizer state", "gradients"])
def test_training_state_in_a_forward(record: Record, memory: Memory, row: str) -> None:
    spec = record.spec | {"step": "inference"}
    clean = with_row(with_row(memory, "optimizer state", 0), "gradients", 0)
    assert rules.state_in_forward(bent(record, spec=spec, memory=clean)) is None
    finding = rules.state_in_forward(bent(record, spec=spec, memory=with_row(clean, row, 2**20)))
    assert finding is not None
    assert "1.00 MiB" in finding.verdict


class TestAutocast:
    """2.7B without a graph: published as 12.9 GiB in fp32 and 19.2 under autocast."""

    @pytest.fixture
    def large(self, record: Record, memory: Memory) -> Record:
        spec = RunSpec(model="2.7B", step="inference", precision="bf16", device="cuda:0")
        changed = bent(memory, peak_allocated_bytes=round(19.18 * GIB))
        changed = with_row(changed, "autocast weight copies", round(6.35 * GIB))
        made: Record = bent(record, spec=msgspec.to_builtins(spec), memory=changed)
        return made

    def test_copies_outweigh_savings(self, large: Record) -> None:
        finding = rules.copies_outweigh_savings(large)
        assert finding is not None
        assert "6.35 GiB" in finding.verdict

    def test_copies_that_save_memory(self, large: Record) -> None:
        spec = msgspec.convert(large.spec, RunSpec)
        in_float = predict(spec.changed(precision="fp32")).peak_bytes
        assert large.memory is not None
        fine = bent(large, memory=bent(large.memory, peak_allocated_bytes=in_float - 1))
        assert rules.copies_outweigh_savings(fine) is None

    def test_compiled_code_cannot_be_compared(self, large: Record) -> None:
        compiled = bent(large, spec=large.spec | {"compile": "default"})
        assert rules.copies_outweigh_savings(compiled) is None


class TestFirstStep:
    def test_a_trained_step_without_state_was_a_first_one(
        self, record: Record, memory: Memory
    ) -> None:
        stateless = bent(record, memory=with_row(memory, "optimizer state", 0))
        finding = rules.first_step_for_steady(stateless)
        assert finding is not None
        assert "no optimizer state" in finding.why

    def test_sgd_has_none(self, record: Record, memory: Memory) -> None:
        spec = record.spec | {"optimizer": "sgd"}
        stateless = bent(record, spec=spec, memory=with_row(memory, "optimizer state", 0))
        assert rules.first_step_for_steady(stateless) is None


def on_card(record: Record, used: int, *, total: int = 80 * GIB, wsl: bool = False) -> Record:
    made: Record = bent(
        record,
        spec=record.spec | {"device": "cuda:0"},
        environment=record.environment
        | {"device": {"memory_total_bytes": total}, "system": {"wsl": wsl}},
        memory=bent(record.memory, driver_used_bytes=used, peak_reserved_bytes=used - GIB),
    )
    return made


class TestLimit:
    @pytest.mark.parametrize(("used", "expected"), [(77, True), (75, False)])
    def test_almost_full_device(self, record: Record, used: int, expected: bool) -> None:
        assert (rules.close_to_the_limit(on_card(record, used * GIB)) is not None) is expected

    def test_memory_limit_replaces_capacity(self, record: Record, memory: Memory) -> None:
        limited = record.spec | {"memory_limit": round(memory.peak_allocated_bytes * 1.01)}
        finding = rules.close_to_the_limit(bent(record, spec=limited))
        assert finding is not None
        assert finding.verdict == "The peak used 99 % of the memory."

    def test_unknown_device(self, record: Record) -> None:
        nameless = bent(on_card(record, 77 * GIB), environment={})
        assert rules.close_to_the_limit(nameless) is None


class TestSpill:
    @pytest.mark.parametrize(
        ("used", "wsl", "expected"), [(90, True, True), (90, False, False), (70, True, False)]
    )
    def test_more_in_use_than_the_card_has(
        self, record: Record, used: int, wsl: bool, expected: bool
    ) -> None:
        spilled = on_card(bent(record, timing=None), used * GIB, wsl=wsl)
        assert (rules.spilled_to_the_host(spilled) is not None) is expected

    @pytest.mark.parametrize(("ratio", "expected"), [(9.0, True), (2.0, False)])
    def test_a_backward_far_longer_than_its_forward(
        self, record: Record, ratio: float, expected: bool
    ) -> None:
        timing: Timing | None = record.timing
        assert timing is not None
        forward = timing.phases["forward"]
        backward = bent(forward, median_ms=ratio * forward.median_ms)
        slow = bent(timing, phases={"forward": forward, "backward": backward})
        finding: Finding | None = rules.spilled_to_the_host(
            on_card(bent(record, timing=slow), 70 * GIB, wsl=True)
        )
        assert (finding is not None) is expected
        if finding is not None:
            assert finding.severity == "problem"
            assert "9.0 times" in finding.why
