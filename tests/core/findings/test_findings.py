"""Each rule on a real record with one change."""

from __future__ import annotations

from math import fsum
from typing import Any

import msgspec
import pytest

from sysbench.core.compare.statistics import spread
from sysbench.core.findings.findings_rules import findings_of
from sysbench.core.findings.kernels_rules import category_out_of_line
from sysbench.core.formatting import format_bytes
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.forward import COPIES
from sysbench.core.record.environment import Roof
from sysbench.core.record.events import Neighbour
from sysbench.core.record.memory import LARGER_BLOCKS
from sysbench.core.record.record import (
    CategoryRow,
    Finding,
    IdleRow,
    Kernels,
    LedgerRow,
    Memory,
    PassRecord,
    Record,
    Telemetry,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.trust import coverage_warning
from tests import factories

FAILED = [PassRecord("timing", "failed", "failed", 5.0)]


@pytest.fixture(scope="module")
def quiet(tiny_run: RunDirectory) -> Record:
    """The real run, as it would be on a machine without noise."""
    record = tiny_run.record()
    assert record.timing is not None
    assert record.kernels is not None
    assert record.memory is not None
    samples = [10.0, 10.01, 9.99, 10.02, 9.98] * 8
    phases = {"forward": spread([3.0] * 9), "backward": spread([6.0] * 9)}
    timing = bent(
        record.timing,
        step=spread(samples),
        samples_ms=samples,
        settled=True,
        phases=phases | {"optimizer": spread([1.0] * 9)},
    )
    made: Record = bent(
        record,
        spec=record.spec | {"steps": 0},
        timing=timing,
        kernels=bent(
            record.kernels, step_ms=10.2, perturbation=1.02, categories=in_line(record.kernels)
        ),
        memory=bent(record.memory, predicted_peak_bytes=record.memory.peak_allocated_bytes),
        telemetry=telemetry(),
    )
    return made


def in_line(kernels: Kernels) -> list[CategoryRow]:
    """The categories with all time in products: beside other work the shares are anything."""
    total_ns = fsum(row.exclusive_ns for row in kernels.categories)
    return [
        bent(row, exclusive_ns=total_ns if row.category == "gemm" else 0.0)
        for row in kernels.categories
    ]


def bent(struct: Any, **changes: object) -> Any:
    return msgspec.structs.replace(struct, **changes)


def telemetry(**changes: Any) -> Telemetry:
    none = Telemetry(
        interval_seconds=0.5, samples=9, series={}, clock_reasons=[], other_processes=[]
    )
    return msgspec.structs.replace(none, **changes)


def rules(record: Record) -> list[str]:
    return [finding.rule for finding in findings_of(record)]


def only(record: Record) -> Finding:
    """The one finding, beside that the measurement is trustworthy."""
    first, *others = findings_of(record)
    assert {finding.rule for finding in others} <= {"trustworthy"}
    return first


def test_a_quiet_run_is_called_trustworthy(quiet: Record) -> None:
    assert only(quiet).rule == "trustworthy"
    assert only(quiet).severity == "good"


def test_steps_that_the_device_outlasts_are_reported(quiet: Record) -> None:
    def timed(clock: str, wall_ms: float | None) -> list[str]:
        return rules(bent(quiet, timing=bent(quiet.timing, clock=clock, wall_ms=wall_ms)))

    assert timed("cuda-events", 640.0) == ["work-outside-steps"]
    assert timed("cuda-events", 10.4) == timed("cuda-events", None) == ["trustworthy"]
    assert timed("host", 640.0) == ["trustworthy"], "the host's steps have all that it did"


def test_wide_interval_is_reported_with_its_target(quiet: Record) -> None:
    assert quiet.timing is not None
    step = spread([10.0, 14.0] * 20)
    finding = only(bent(quiet, timing=bent(quiet.timing, step=step, settled=False)))
    assert finding.rule == "not-settled"
    assert finding.severity == "warning"
    assert "±0.5 %" in finding.verdict


def test_a_fixed_number_of_steps_may_miss_the_goal_a_little(quiet: Record) -> None:
    assert quiet.timing is not None
    timing = bent(quiet.timing, settled=False)
    assert "not-settled" not in rules(bent(quiet, timing=timing, spec=quiet.spec | {"steps": 12}))


@pytest.mark.parametrize(("later", "word"), [(11.0, "slowed down"), (9.0, "sped up")])
def test_drift_has_a_direction(quiet: Record, later: float, word: str) -> None:
    assert quiet.timing is not None
    step = bent(spread([10.0] * 20 + [later] * 20), ci_low_ms=9.99, ci_high_ms=10.01)
    finding = only(bent(quiet, timing=bent(quiet.timing, step=step)))
    assert finding.rule == "drifting"
    assert word in finding.verdict


def test_null_gpu_comes_first(quiet: Record) -> None:
    device = {"device": {"name": "NVIDIA H100 80GB HBM3 (null GPU)", "is_simulated": True}}
    null = bent(quiet, environment=quiet.environment | device, status="failed", passes=FAILED)
    assert rules(null)[:2] == ["null-gpu", "ended-early"]
    assert findings_of(null)[0].verdict == "Null GPU: times mean nothing."
    real = {"device": {"name": "NVIDIA H100 80GB HBM3"}}
    assert "null-gpu" not in rules(bent(null, environment=quiet.environment | real))


def test_null_gpu_has_no_finding_on_times(quiet: Record) -> None:
    assert quiet.kernels is not None and quiet.timing is not None
    perturbed = bent(
        quiet,
        kernels=bent(quiet.kernels, perturbation=1.5),
        timing=bent(quiet.timing, settled=False),
    )
    assert {*rules(perturbed)} == {"not-settled", "tracing-perturbed"}
    device = {"device": {"name": "NVIDIA H100 80GB HBM3 (null GPU)", "is_simulated": True}}
    assert rules(bent(perturbed, environment=quiet.environment | device)) == ["null-gpu"]


def test_other_tenants_are_named(quiet: Record) -> None:
    tenant = {"pid": 4211, "name": "python [bold]", "memory_bytes": None}
    finding = only(bent(quiet, telemetry=telemetry(other_processes=[tenant])))
    assert finding.rule == "other-tenants"
    assert "python [bold] (pid 4211)" in finding.why


def test_other_work_on_the_host(quiet: Record) -> None:
    load = {"host.cpu_percent": {"min": 90.0, "median": 100.0, "max": 100.0, "n": 9}}
    environment = quiet.environment | {"cpu": {"threads": 8}, "settings": {"threads": 3}}
    alone = [PassRecord("timing", "finished", "finished", 1.0)]
    busy = bent(quiet, telemetry=telemetry(series=load), environment=environment, passes=alone)
    assert only(busy).rule == "busy-machine"
    assert only(busy).verdict == "Other processes used 5.0 CPU cores during the run."
    others = [Neighbour(name="ffmpeg", cores=4.02), Neighbour(name="sshd", cores=0.02)]
    timed = PassRecord("timing", "finished", "finished", 1.0, neighbours=others)
    named = only(bent(busy, passes=[timed]))
    assert named.verdict.endswith("during the run: ffmpeg 4.0.")


@pytest.mark.parametrize("perturbation", [0.85, 1.15])
def test_perturbed_trace(quiet: Record, perturbation: float) -> None:
    assert quiet.kernels is not None
    finding = only(bent(quiet, kernels=bent(quiet.kernels, perturbation=perturbation)))
    assert finding.rule == "tracing-perturbed"
    assert "15 %" in finding.verdict
    assert ("slowed the step" in finding.verdict) == (perturbation > 1)
    assert ("noise is one possible cause" in finding.verdict) == (perturbation < 1)
    assert "not tested for significance" in finding.why


def test_table_that_explains_little(quiet: Record) -> None:
    assert quiet.kernels is not None
    coverage = bent(quiet.kernels.coverage, explained=0.9, unlinked=436, kernels=1465)
    finding = only(bent(quiet, kernels=bent(quiet.kernels, coverage=coverage)))
    assert finding.rule == "low-coverage"
    assert "436 of 1465" in finding.why


def test_a_table_of_the_host_in_place_of_the_gpus_is_a_problem(quiet: Record) -> None:
    assert quiet.kernels is not None
    blind = bent(
        quiet.kernels,
        coverage=bent(quiet.kernels.coverage, explained=0.0),
        missing=quiet.kernels.missing | {"kernels": "no work on the GPU was recorded: CUPTI"},
    )
    finding = only(bent(quiet, kernels=blind))
    assert (finding.rule, finding.severity) == ("no-kernels", "problem")
    assert finding.why == "No work on the GPU was recorded: CUPTI."
    assert coverage_warning(blind).startswith("These tables are not of the GPU")


def on_gpu(quiet: Record, busy_ms: float, idle: dict[str, float], **changes: Any) -> Record:
    """The run as if its rows were kernels: so much work, idle milliseconds by cause."""
    assert quiet.kernels is not None
    rows = [IdleRow(cause, ms * 1e6, ms / 10) for cause, ms in idle.items()]
    kernels = bent(
        quiet.kernels, source="kernels", busy_ns=busy_ms * 1e6, idle=rows, step_ms=10.2, **changes
    )
    made: Record = bent(quiet, kernels=kernels)
    return made


LATE, SYNC, BETWEEN = "host had not launched yet", "waiting on a sync", "between launched kernels"


def test_gpu_that_waits_for_launches(quiet: Record) -> None:
    finding = only(on_gpu(quiet, 6.9, {LATE: 3.0, BETWEEN: 0.3}))
    assert finding.rule == "launch-bound"
    assert finding.verdict.startswith("CPU-bound: the GPU idles 31 % of the step waiting for")
    assert finding.numbers["idle"] == pytest.approx(0.31)


@pytest.mark.parametrize(
    ("busy_ms", "idle"),
    [
        (9.5, {LATE: 3.0}),  # idle only because tracing slowed the host
        (6.9, {LATE: 0.5, BETWEEN: 2.8}),  # idle, but not waiting for launches
    ],
)
def test_other_idle_time_is_not_called_launch_bound(
    quiet: Record, busy_ms: float, idle: dict[str, float]
) -> None:
    assert only(on_gpu(quiet, busy_ms, idle)).rule == "trustworthy"


def test_launches_of_the_optimizer_have_a_fused_remedy(quiet: Record) -> None:
    record = on_gpu(quiet, 6.9, {LATE: 3.1}, phases_ns={"forward": 1.0, "optimizer": 9e9})
    finding = only(bent(record, spec=quiet.spec | {"optimizer": "adamw-loop"}))
    assert "mostly in optimizer" in finding.verdict
    assert "adamw-fused" in finding.next


def test_gpu_that_waits_on_a_sync(quiet: Record) -> None:
    finding = only(on_gpu(quiet, 9.2, {SYNC: 0.8}))
    assert finding.rule == "idle-on-sync"
    assert "8 %" in finding.verdict
    assert only(on_gpu(quiet, 9.8, {SYNC: 0.2})).rule == "trustworthy"


def test_a_category_out_of_line_is_named_with_its_share(quiet: Record) -> None:
    categories = [
        CategoryRow("gemm", "forward", 1, 5e6, 0.5),
        CategoryRow("copy", "forward", 1, 4e6, 0.4),
        CategoryRow("copy", "backward", 1, 1e6, 0.1),
    ]
    assert quiet.kernels is not None
    finding = only(bent(quiet, kernels=bent(quiet.kernels, categories=categories)))
    assert (finding.rule, finding.severity) == ("category-out-of-line", "note")
    assert finding.verdict == "Copy ops take 50 % of busy time."


@pytest.mark.parametrize(
    ("category", "settings", "remedy"),
    [
        ("softmax", {"compile": "off", "attention": "naive"}, "compile=default or attention=sdpa"),
        ("softmax", {"compile": "off", "attention": "sdpa"}, "compile=default."),
        ("softmax", {"compile": "default", "attention": "sdpa"}, "Find them in the tree."),
        ("optimizer", {"optimizer": "adamw-loop"}, "optimizer=adamw-fused"),
        ("optimizer", {"optimizer": "adamw-fused"}, "Use a larger batch"),
    ],
)
def test_no_remedy_is_a_setting_that_the_run_has(
    quiet: Record, category: str, settings: dict[str, str], remedy: str
) -> None:
    assert quiet.kernels is not None
    kernels = bent(quiet.kernels, categories=[CategoryRow(category, "forward", 1, 5e6, 1.0)])
    found = category_out_of_line(bent(quiet, kernels=kernels, spec=quiet.spec | settings))
    assert found is not None and remedy in found.next


def test_graphs_are_no_remedy_of_graphs(quiet: Record) -> None:
    record = on_gpu(quiet, 6.9, {LATE: 3.1})
    assert "reduce-overhead" in only(record).next
    graphs = quiet.spec | {"compile": "reduce-overhead"}
    assert only(bent(record, spec=graphs)).next == "Launch less often: a larger batch."


def test_missed_prediction(quiet: Record) -> None:
    memory: Memory | None = quiet.memory
    assert memory is not None
    wrong = bent(memory, predicted_peak_bytes=memory.peak_allocated_bytes * 2)
    assert only(bent(quiet, memory=wrong)).rule == "prediction-missed"


def test_what_blocks_are_larger_than_their_requests_is_no_fault_of_the_prediction(
    quiet: Record,
) -> None:
    memory: Memory | None = quiet.memory
    assert memory is not None
    peak = memory.peak_allocated_bytes
    larger = LedgerRow(LARGER_BLOCKS[0], peak)
    twice = bent(memory, peak_allocated_bytes=2 * peak, ledger=[*memory.ledger, larger])
    assert only(bent(quiet, memory=twice)).rule == "trustworthy"


def test_what_blocks_are_larger_than_their_requests_is_no_cost_of_autocast(quiet: Record) -> None:
    memory: Memory | None = quiet.memory
    assert memory is not None
    spec = msgspec.convert(quiet.spec, RunSpec)
    fp32_peak = predict(spec.changed(precision="fp32")).peak_bytes
    copies, larger = fp32_peak // 10, fp32_peak // 2
    ledger = [LedgerRow(COPIES, copies), LedgerRow(LARGER_BLOCKS[0], larger)]
    saves = bent(memory, peak_allocated_bytes=fp32_peak // 2 + larger, ledger=ledger)
    low = bent(quiet, spec=quiet.spec | {"precision": "bf16"})
    assert "autocast-copies-outweigh" not in rules(bent(low, memory=saves))
    saves_nothing = bent(memory, peak_allocated_bytes=fp32_peak + copies + larger, ledger=ledger)
    assert "autocast-copies-outweigh" in rules(bent(low, memory=saves_nothing))


def test_what_a_library_takes_is_no_fault_of_the_prediction(quiet: Record) -> None:
    memory: Memory | None = quiet.memory
    assert memory is not None
    peak = memory.peak_allocated_bytes
    more = bent(memory, predicted_peak_bytes=peak // 2, library_workspace_bytes=peak // 2)
    finding = only(bent(quiet, memory=more))
    assert (finding.rule, finding.severity) == ("prediction-missed", "note")
    assert finding.verdict == (
        f"Library workspace adds {format_bytes(peak // 2)} to the peak; "
        "predictions do not include it."
    )
    assert finding.numbers["tensor_error"] == pytest.approx(0, abs=1e-6)
    # Both: the tensors are not as predicted, either.
    wrong = bent(more, library_workspace_bytes=peak // 4)
    assert "predicted" in only(bent(quiet, memory=wrong)).verdict


def test_a_compiled_run_that_ran_eagerly_is_a_problem(quiet: Record) -> None:
    block = factories.compiled(graphs=9, graph_breaks={"print": 1}, recompiles=8, fell_back=True)
    finding = findings_of(bent(quiet, compile=block))[0]
    assert (finding.rule, finding.severity) == ("fell-back-to-eager", "problem")


@pytest.mark.parametrize(
    "outcome",
    ["oom", "cuda-error", "failed", "killed", "hung", "cancelled", "disk-full"],
)
def test_every_early_end_comes_first_with_a_next_step(quiet: Record, outcome: Any) -> None:
    ended = PassRecord("trace", outcome, "what happened", 1.0)
    finding = findings_of(bent(quiet, passes=[ended]))[0]
    assert finding.rule == "ended-early"
    assert finding.why == "what happened"
    assert finding.next


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
        ("device-side assert triggered", "CUDA_LAUNCH_BLOCKING=1"),
        ("unspecified launch failure", "CUDA_LAUNCH_BLOCKING=1"),
        ("operation not supported on global/shared address space", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(…)`", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA-capable device(s) is/are busy or unavailable", "compute mode"),
        ("all CUDA-capable devices are busy or unavailable", "compute mode"),
        ("uncorrectable ECC error encountered", "ECC"),
        ("uncorrectable NVLink error detected during the execution", "Xid"),
        ("system not yet initialized", "fabricmanager"),
        ("system has unsupported display driver / cuda driver combination", "reboot"),
        ("forward compatibility was attempted on non supported HW", "cuda-compat"),
        ("CUDA driver version is insufficient for CUDA runtime version", "Update"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "Update"),
        ("no kernel image is available for execution on the device", "get_arch_list"),
        ("no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"),
        ("MPS server is not ready to accept new MPS client requests", "MPS"),
        ("operation not permitted when stream is capturing", "graph"),
    ],
)
def test_what_to_do_about_a_cuda_error_goes_by_the_error(
    quiet: Record, error: str, words: str
) -> None:
    ended = PassRecord("trace", "cuda-error", f"RuntimeError: CUDA error: {error}", 1.0)
    finding = findings_of(bent(quiet, passes=[ended]))[0]
    assert words in finding.next
    assert ("LAUNCH_BLOCKING" in finding.next) == ("LAUNCH_BLOCKING" in words)


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        (
            "killed by SIGKILL (by a user, or by the kernel out of memory) in stage measure",
            "killer",
        ),
        ("killed by SIGSEGV in stage measure", "crashed"),
        ("rank 1: killed by SIGABRT in stage warmup; its log ends: …", "crashed"),
        ("killed by SIGBUS in stage warmup", "/dev/shm"),
        ("killed by SIGTERM in stage measure", "scheduler"),
        ("its supervisor was killed", "Find out what ended it"),
    ],
)
def test_what_to_do_about_a_signal_goes_by_the_signal(
    quiet: Record, detail: str, words: str
) -> None:
    ended = PassRecord("trace", "killed", detail, 1.0)
    finding = findings_of(bent(quiet, passes=[ended]))[0]
    assert words in finding.next
    assert ("out-of-memory" in finding.next) == ("SIGKILL" in detail)


def test_few_steps_far_apart_are_not_called_trustworthy(quiet: Record) -> None:
    assert quiet.timing is not None
    timing = bent(quiet.timing, step=spread([10.0, 30.0, 20.0]), settled=False)
    assert rules(bent(quiet, timing=timing, spec=quiet.spec | {"steps": 3})) == ["not-settled"]


def test_an_optimizer_that_takes_much_of_the_step_names_its_bound(quiet: Record) -> None:
    assert quiet.timing is not None
    assert quiet.memory is not None
    roof = Roof(precision="fp32", peak_flops=1e12, peak_source="test", bandwidth=1e12)
    phases = quiet.timing.phases | {"optimizer": spread([4.8] * 9)}
    timing = bent(quiet.timing, phases=phases, roof=roof)
    record = bent(quiet, timing=timing, spec=quiet.spec | {"optimizer": "adamw-loop"})
    finding = only(record)
    assert finding.rule == "heavy-optimizer"
    assert finding.verdict.startswith("The optimizer takes 48 % of the step: adamw-loop runs ")
    assert finding.cost == pytest.approx(0.48)
    rows = {row.name: row.bytes for row in quiet.memory.columns["steady end"]}
    moved = 3 * rows["parameters"] + 2 * rows["optimizer state"]
    assert finding.numbers["least_ms"] == pytest.approx(moved / 1e9)
    assert "adamw-fused" in finding.next
    assert "save up to" in finding.next
    fused = bent(record, spec=quiet.spec | {"optimizer": "adamw-fused"})
    assert "adamw-fused" not in only(fused).next
