"""The program on null GPUs: runs finish, say what they are, and end as on a card that fails."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from tests.null_gpu.conftest import Make, NullGpu

pytestmark = pytest.mark.null_gpu

TINY = ("--set", "model=tiny", "--set", "steps=6", "--set", "threads=1")
NAME = "NVIDIA H100 80GB HBM3 (null GPU)"


@pytest.fixture(scope="module")
def on_h100(make_null_gpu: Make) -> NullGpu:
    return make_null_gpu()


@pytest.fixture(scope="module")
def whole(on_h100: NullGpu) -> dict[str, Any]:
    """A record with every pass of a plain run."""
    return on_h100.record(*TINY, "--set", "precision=bf16")


def test_every_pass_finishes(whole: dict[str, Any]) -> None:
    assert {passed["outcome"] for passed in whole["passes"]} == {"finished"}
    assert whole["timing"]["clock"] == "cuda-events"
    assert whole["kernels"]["source"] == "kernels"
    assert whole["memory"]["source"] == "cuda-snapshot"


def test_the_record_says_that_its_times_mean_nothing(whole: dict[str, Any]) -> None:
    assert whole["environment"]["device"]["name"] == NAME
    assert whole["environment"]["device"]["is_simulated"] is True
    assert whole["findings"][0]["rule"] == "null-gpu"
    assert whole["findings"][0]["severity"] == "problem"
    of_times = {"not-settled", "tracing-perturbed", "launch-bound", "faster-than-peak"}
    assert of_times.isdisjoint(finding["rule"] for finding in whole["findings"])


def test_the_list_of_runs_has_the_mark(on_h100: NullGpu, whole: dict[str, Any]) -> None:
    listed = on_h100.sysbench("list", "--json").stdout
    assert whole["id"] in listed
    assert NAME in listed


def test_every_kernel_is_explained_by_a_launch(whole: dict[str, Any]) -> None:
    coverage = whole["kernels"]["coverage"]
    assert coverage["unlinked"] == 0
    assert coverage["kernels"] > 100


def test_the_driver_holds_what_the_allocator_and_the_context_hold(whole: dict[str, Any]) -> None:
    memory = whole["memory"]
    assert memory["driver_used_bytes"] == memory["peak_reserved_bytes"] + (526 << 20)


def test_the_clocks_of_allocator_and_notes_are_joined(whole: dict[str, Any]) -> None:
    memory = whole["memory"]
    assert memory["clock_offset_us"] is not None
    assert abs(memory["residual_bytes"]) < 0.01 * memory["peak_allocated_bytes"]


def test_the_reserve_of_a_card_that_is_nearly_full_is_predicted(null_gpu: NullGpu) -> None:
    model = {"vocab": 10_000, "d_model": 256, "d_ff": 1024, "heads": 8, "layers": 4}
    settings = [f"{key}={value}" for key, value in {**model, "context": 512}.items()]
    record = null_gpu.record(
        *("--passes", "memory", "--set", "precision=fp32", "--set", "batch=4"),
        *(word for setting in settings for word in ("--set", setting)),
        memory_mib=526 + 900,
    )
    memory = record["memory"]
    # On a larger card it reserves 918 MiB.
    assert memory["peak_reserved_bytes"] == 900 << 20
    assert memory["predicted_reserved_bytes"] == memory["peak_reserved_bytes"]


def test_a_kernel_that_faults_ends_the_run_as_a_cuda_error(null_gpu: NullGpu) -> None:
    record = null_gpu.record(*(*TINY, "--passes", "timing"), exit_code=1, fail_at_launch=2000)
    assert [passed["outcome"] for passed in record["passes"]] == ["cuda-error"]


def test_a_small_card_runs_out_of_memory(null_gpu: NullGpu) -> None:
    record = null_gpu.record(
        *("--set", "model=tiny", "--set", "batch=64", "--set", "context=512"),
        *("--passes", "memory"),
        exit_code=1,
        memory_mib=900,
    )
    assert [passed["outcome"] for passed in record["passes"]] == ["oom"]


def test_as_many_sequences_as_advised_are_served(null_gpu: NullGpu) -> None:
    small: dict[str, Any] = {"memory_mib": 526 + 900}
    spec = ("model=tiny", "step=decode", "context=512", "precision=bf16-pure", "device=cuda")
    done = null_gpu.sysbench(
        *("estimate", "--json", *spec, "--exact", "--fit", "sequences"), **small
    )
    advice = json.loads(done.stdout)
    assert 0 < advice["largest"] < advice["beyond"]
    settings = [word for setting in spec for word in ("--set", setting)]
    for sequences, outcome in ((advice["largest"], "finished"), (advice["beyond"], "oom")):
        record = null_gpu.record(
            *(*settings, "--set", f"batch={sequences}", "--passes", "memory"),
            exit_code=0 if outcome == "finished" else 1,
            **small,
        )
        assert [passed["outcome"] for passed in record["passes"]] == [outcome]


def test_a_refused_cupti_gives_no_kernel_table(null_gpu: NullGpu) -> None:
    done = null_gpu.sysbench(
        *("run", "--json", "--set", "device=cuda", *TINY, "--passes", "trace"), cupti="refused"
    )
    assert '"source": "kernels"' not in done.stdout.replace('"source":"', '"source": "')


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_cards_train_together_and_hold_what_is_predicted(
    null_gpu: NullGpu, parallel: str
) -> None:
    record = null_gpu.record(
        *(*TINY, "--set", f"parallel={parallel}", "--set", "ranks=2"),
        *("--passes", "timing,memory"),
        count=2,
    )
    memory = record["memory"]
    for row in memory["ranks"]:
        assert row["predicted_peak_bytes"] == pytest.approx(row["peak_bytes"], rel=1e-3)
        assert row["predicted_reserved_bytes"] == row["reserved_bytes"]
    rows = [row for row in memory["reconciliation"] if row["name"] != "peak"]
    for row in rows:
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], abs=16_384), row
    block = record["distributed"]
    assert block["backend"] == "nccl"
    assert [row["device"] for row in block["rows"]] == ["cuda:0", "cuda:1"]


def test_an_all_reduce_is_measured_between_two_cards(null_gpu: NullGpu) -> None:
    record = null_gpu.record(
        *("--set", "workload=all-reduce", "--set", "ranks=2", "--set", "payload_mib=4"),
        *("--set", "steps=6", "--passes", "timing"),
        count=2,
    )
    assert record["distributed"]["all_reduce"] is not None


def test_a_study_runs_to_its_end(null_gpu: NullGpu) -> None:
    chosen = ("--variant", "small", "--set", "device=cuda", "--only", "precision=bf16")
    done = null_gpu.sysbench("study", "memory-precision", *chosen)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 cells done" in done.stderr
    assert done.stderr.count("finished ") == 2


@pytest.mark.parametrize("count", [1, 2])
def test_a_study_of_two_ranks_runs_on_two_cards_and_is_refused_on_one(
    null_gpu: NullGpu, count: int
) -> None:
    chosen = ("--variant", "small", "--set", "device=cuda", "--only", "method=flat")
    done = null_gpu.sysbench("study", "ddp", *chosen, count=count)
    assert done.returncode == (1 if count == 1 else 0), done.stderr
    if count == 1:
        assert "at most 1 here, each rank has a CUDA device" in done.stdout
    else:
        assert "finished  method=flat" in done.stderr


@pytest.mark.parametrize("code", [18, 12])
def test_a_gpu_without_nvml_is_measured(null_gpu: NullGpu, code: int) -> None:
    words = ("--set", "device=auto", "--passes", "timing")
    record = null_gpu.record(*TINY, *words, NVML_STUB_INIT=code)
    assert record["spec"]["device"] == "cuda:0"
    assert record["environment"]["device"]["name"] == NAME
    assert record["environment"]["nvidia"] is None


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", "the allocator is cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "counts and records nothing"),
    ],
)
def test_without_the_caching_allocator_only_the_ledger_is_missing(
    null_gpu: NullGpu, variable: str, value: str, words: str
) -> None:
    record = null_gpu.record(*TINY, exit_code=1, **{variable: value})
    outcomes = {row["name"]: (row["outcome"], row["detail"]) for row in record["passes"]}
    assert outcomes["timing"][0] == outcomes["trace"][0] == "finished"
    assert outcomes["memory"][0] == "failed" and words in outcomes["memory"][1]
    assert record["memory"] is None and words in record["missing"]["memory"]


def test_another_allocator_that_is_full_is_out_of_memory(null_gpu: NullGpu) -> None:
    words = ("model=tiny", "batch=64", "context=512", "--passes", "timing")
    variables = {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}
    record = null_gpu.record(*words, exit_code=1, memory_mib=900, **variables)
    (row,) = record["passes"]
    assert row["outcome"] == "oom"
    assert row["oom"]["largest_free_bytes"] is None


@pytest.mark.parametrize(
    "settings",
    [
        "layers=2 d_model=640 heads=10 d_ff=1706 step=inference",
        "layers=6 d_model=256 heads=4 d_ff=680 step=forward+backward precision=bf16-pure",
        # Under autocast the pass watches casts, and must not change what attention requests.
        "layers=5 d_model=128 heads=2 d_ff=342 precision=fp16 attention=sdpa-math context=500",
    ],
)
def test_what_a_run_holds_is_predicted_to_the_byte(null_gpu: NullGpu, settings: str) -> None:
    shape = [word for one in settings.split() for word in ("--set", one)]
    memory = null_gpu.record("--passes", "memory", "--set", "vocab=32000", *shape)["memory"]
    assert memory["predicted_allocated_bytes"] == memory["peak_allocated_bytes"]
    assert memory["predicted_reserved_bytes"] == memory["peak_reserved_bytes"]


FLOAT8 = (
    *("device=cuda", "steps=3", "warmup=1", "attention=sdpa"),
    *("vocab=64", "d_model=128", "d_ff=360", "layers=5", "heads=4", "batch=8", "context=64"),
)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_a_step_in_float8_takes_what_a_dry_run_predicts(on_h100: NullGpu, recipe: str) -> None:
    if not find_spec("torchao"):
        pytest.skip("torchao is not installed")
    precision = "precision=fp8" if recipe == "rowwise" else "precision=fp8-tensorwise"
    record = on_h100.record("--set", *FLOAT8, precision, "--passes", "trace,memory")
    memory, group = record["memory"], record["environment"]["float8"]
    assert memory["predicted_peak_bytes"] == memory["peak_requested_bytes"]
    assert memory["predicted_reserved_bytes"] == memory["peak_reserved_bytes"]
    converted = [row for row in group["layers"] if not row["why_not"]]
    assert [row["layers"] for row in converted] == [5] * 4 and group["recipe"] == recipe
    assert record["kernels"]["product_errors"] == []  # nothing is computed
    products = [row for row in record["kernels"]["rows"] if row["category"] == "gemm"]
    of_attention = 4 * 8 * 64**2 * 128 * 5  # batch, context, d_model, layers
    forward = record["prediction"]["forward_flops"] - of_attention
    assert sum(row["flops"] for row in products) == 3 * forward
    shown = on_h100.sysbench("show", record["id"], "--section", "kernels").stdout
    assert "20 of 36 linear layers in float8" in shown


BLOCKS = (
    *("device=cuda", "step=decode", "steps=3", "warmup=1", "attention=sdpa", "context=65"),
    *("vocab=64", "d_model=128", "d_ff=368", "layers=5", "heads=4", "batch=8"),
)


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_weights_in_blocks_take_what_a_dry_run_predicts(on_h100: NullGpu, precision: str) -> None:
    if not find_spec("torchao"):
        pytest.skip("torchao is not installed")
    settings = (*BLOCKS, f"precision={precision}")
    record = on_h100.record("--set", *settings, "--passes", "trace,memory", card="b200")
    memory, group = record["memory"], record["environment"]["float8"]
    assert memory["predicted_peak_bytes"] == memory["peak_requested_bytes"]
    assert memory["predicted_reserved_bytes"] == memory["peak_reserved_bytes"]
    converted = [row for row in group["layers"] if not row["why_not"]]
    # The feed-forward's width of 368 is divisible by 16, but not by 32, so one is left.
    assert [row["layers"] for row in converted] == [5] * 6 and group["recipe"] == precision
    products = [row for row in record["kernels"]["rows"] if row["category"] == "gemm"]
    of_attention = 4 * 8 * 65 * 128 * 5  # batch, context, d_model, layers
    assert sum(row["flops"] for row in products) == (
        record["prediction"]["forward_flops"] - of_attention
    )


def test_float8_is_refused_by_an_older_card(on_h100: NullGpu) -> None:
    settings = ("--set", *FLOAT8, "precision=fp8", "--passes", "timing")
    record = on_h100.record(*settings, exit_code=1, card="a100")
    assert "has 8.0: take bf16" in record["passes"][0]["detail"]
