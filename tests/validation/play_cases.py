"""Try the inputs of `../shared/data/cases`, each against the right value beside it.

Run by `make test-cases`; skipped where the folder is absent. Five cases need the null GPU of
`make null-gpu`; f14, a full home, is in tests/cli/reading/test_inspect.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.null_gpu.conftest import NullGpu, make_null_gpu, null_gpu

__all__ = ["make_null_gpu", "null_gpu"]

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases"
PROGRAM = Path(sys.executable).with_name("sysbench-tui")
STEP = "batch=2 context=8 layers=0 optimizer=sgd attention=own"
SHORT = f"{STEP} steps=5 warmup=1"
pytestmark = [
    pytest.mark.skipif(not CASES.is_dir(), reason=f"no folder {CASES}"),
    pytest.mark.usefixtures("sysbench_home"),
]


def play(*words: str | Path, folder: Path) -> tuple[int, str]:
    """Run the program in the folder; return its exit code and all that it printed."""
    done = subprocess.run(
        [PROGRAM, *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=250,
    )
    return done.returncode, done.stdout.decode()


def check(printed: str, *, has: list[str], lacks: list[str] | None = None) -> None:
    """Find each pattern in what was printed, whose lines are joined."""
    joined = " ".join(printed.replace("▌", " ").split())
    for pattern in has:
        assert re.search(pattern, joined), f"{pattern!r} is not in\n{printed}"
    for pattern in lacks or []:
        assert not re.search(pattern, joined), f"{pattern!r} is in\n{printed}"


FILES: dict[str, list[str]] = {
    "inspect f01_first_collective_outside_steps": [
        r"others wait 1 ms",
        r"0 4\.040 2\.400 1\.000 0\.160",
        r"1 3\.040 2\.400 0\.000 0\.160",
        r"4 all-reduce 2 0\.125 1\.000 0\.040",
    ],
    "inspect f02_pipeline_send_recv": [
        r"Rank 1 waits 0\.9 ms",
        r"3 send-receive mesh_pp 2 2\.00 KiB",
        r"clocks aligned",
    ],
    "inspect f03_memory_on_device_1.pickle": [
        r"100 MiB allocated on device 1",
        r"reserved 128 MiB",
        r"peak is unknown",
    ],
    "inspect f04_equal_steps.json": [r"30 of 50 ms \(60 %\) for the data loader"]
    + [rf"\b{step} 10\.000 20\.0 % 0\.900 .*? 6\.000" for step in range(5)],
    "inspect f05_gap_begins_in_a_sync.json": [
        r"99\.988 99\.9 %[^.]* idle: waiting for the CPU to launch",
        r"0\.002 0\.0 %[^.]* idle: CPU inside a synchronization",
        r"0\.005 0\.0 %[^.]* idle: CPU inside the launch call",
        r"0\.005 0\.0 %[^.]* idle: between launched kernels",
    ],
    "inspect f06_duration_runs_over_the_next_ones.json": [
        r"^\S+ chrome trace · \S+ KiB Problem: An impossible duration: fmha_bwd_kernel",
        r"0\.790 100\.0 %",
        r"0\.570 72\.2 % 19 .* gemm",
    ],
    "inspect f08_oom_event.pickle": [
        r"Out of memory: 900 MiB requested at w/model\.py:77 forward, 12\.0 MiB free, 70\.0 MiB",
        r"reserved 128 MiB",
    ],
    "inspect f09_both_ranks_in_one_export.sqlite": [
        r"0 2\.500 0\.300 0\.600 0\.600",
        r"1 2\.300 0\.300 0\.000 0\.600",
        r"Rank 1 is a straggler",
        r"12 kernels|one clock",
    ],
    "inspect f10_npu_is_no_cpu_run.json": [
        r"Problem: The device's work in this file has an unknown form",
        r"6 events of Ascend Hardware NPU",
    ],
    "compare f11_compare_marked_steps/a.json f11_compare_marked_steps/b.json": [
        r"gemm -0\.450 ms",
        r"3 5 9\.000 9\.000 0\.000 0\.900 0\.450 -0\.450",
    ],
    "inspect f13_one_call_is_the_whole_row.json": [
        r"^\S+ chrome trace · \S+ KiB Warning: One of 21 calls",
        r"900 ms, 98 % of the span",
        r"100\.0 % of its row",
    ],
    "inspect f16_annotations_of_a_snapshot.pickle": [
        r"peak in Optimizer\.step#AdamW\.step of ProfilerStep#3",
        r"40\.0 MiB Optimizer\.step#AdamW\.step layer1",
        r"30\.0 MiB forward layer0",
        r"overflowed",
    ],
    "compare f17_same_site_other_caller_line/a.pickle f17_same_site_other_caller_line/b.pickle": [
        r"The peak did not change: 60\.0 MiB on both sides\.$"
    ],
    "inspect f19a_bad_utf8_in_a_name.json": [r"not UTF-8 \(1\)", r"aten::\ufffdmm", r"0\.03 ms"],
    "inspect f19b_quotes_in_metadata_after_the_events.json": [
        r"after the events is not valid JSON and is left out",
        r"span of 0\.03 ms",
    ],
    "inspect f19d_nan.json": [r"NaN or Infinity", r"span of 0\.03 ms"],
    "inspect f20_numbers_as_strings.json": [r"0\.04000 100\.0 % 1 ", r"numbers written as text"],
    "inspect f22_list_of_segments.pickle": [r"100 MiB allocated", r"reserved 128 MiB"],
    "inspect f25_kernels_twice.json": [r"5 of 10 kernels are exact copies", r"0\.150 78\.9 % 5 "],
    "inspect f34_capture_one_launch_longer/replays.json "
    "--capture f34_capture_one_launch_longer/capture.json": [
        r"6 of 6 kernels of graph replays are joined",
        r"launch 4 is in no replay",
        *(rf"{name} {kernel}" for name, kernel in (("aten::mm", "qkv_gemm"), ("aten::sdpa", "fm"))),
    ],
}
LACKS = {
    "inspect f04_equal_steps.json": ["odd", "median of its kind"],
    "inspect f05_gap_begins_in_a_sync.json": [r"\.item\(\)"],
    "inspect f09_both_ranks_in_one_export.sqlite": ["tell waiting", "Compare the ranks' files"],
    "inspect f13_one_call_is_the_whole_row.json": ["larger buckets", "nothing hides"],
    "inspect snapshot-largest-cut-at-50.pickle": ["resident at the peak", "began late"],
    "run own-step-false-findings.py:make": [
        "not dropped",
        "first step",
        "Warning: (?!Other processes)",
    ],
}
MEMORY: dict[str, list[str]] = {
    "estimate grouped-mm-flops.py:make batch=4 context=64 precision=bf16-pure device=cuda "
    "--capacity 24GiB --capability 9.0": [r"forward 4\.19 MFLOP", r"step 12\.6 MFLOP"],
    "run growing-buffer.py:bank batch=64 context=0 --passes memory": [
        r"grows by 16\.0 KiB a step, since step 2: growing-buffer\.py:52 forward \(aten::cat\)"
    ],
    "run growing-buffer.py:kept optimizer=custom batch=64 context=0 --passes memory": [
        r"grows by 2\.50 KiB a step, since step 2: growing-buffer\.py:12"
    ],
    "estimate hf:hf-infinity/config.json batch=1 context=16": [
        r"13,724 parameters",
        r"peak 282 KiB",
    ],
    "run oom-in-optimizer.py:make batch=2 context=32 device=cpu --memory-limit 220MiB "
    "--passes memory": [
        r"predicted peak is 298 MiB",
        r"another optimizer, a lower precision or shards: batch and context cannot help",
    ],
    "estimate own-step-state.py:make batch=8 context=0 device=cpu optimizer=custom": [
        r"optimizer state 7\.64 MiB",
        r"inputs 31\.2 KiB",
        r"peak 22\.9 MiB",
    ],
    "estimate own-step-accumulation.py:make batch=8 context=64 optimizer=custom model.micro=4": [
        r"peak 14\.8 MiB",
        r"optimizer state 5\.51 MiB",
    ],
    "inspect snapshot-bare-list.pickle": [r"1\.53 GiB", r"peak is unknown"],
    "inspect snapshot-largest-cut-at-50.pickle": [
        r"200 4\.00 MiB 4\.00 MiB 800 MiB .*cache\.py:9.* 96 8\.00 MiB 8\.00 MiB 768 MiB",
        r"peak is unknown: nothing was recorded",
    ],
    "inspect snapshot-oom-on-second-device.pickle": [
        r"Out of memory on device 1: 400 MiB requested at \S*train\.py:42 attention, 50\.0 MiB "
        r"free, 800 MiB allocated"
    ],
    "inspect snapshot-oom-one-device.pickle": [
        r"Out of memory: 400 MiB requested at \S*train\.py:42 attention, 50\.0 MiB free"
    ],
}


@pytest.mark.parametrize("line", FILES)
def test_file(line: str) -> None:
    code, printed = play(*shlex.split(line), folder=CASES / "files")
    assert code == 0
    check(printed, has=FILES[line], lacks=LACKS.get(line))


@pytest.mark.parametrize("line", MEMORY)
def test_memory(line: str) -> None:
    code, printed = play(*shlex.split(line), folder=CASES / "memory")
    assert code == (1 if "--memory-limit" in line else 0)
    check(printed, has=MEMORY[line], lacks=LACKS.get(line))
    if "--memory-limit" in line:
        _, printed = play("show", "last", "--section", "oom", folder=CASES)
        check(printed, has=[r"optimizer state 58\.6 MiB"], lacks=[r"temporaries \(optimizer\) 58"])


@pytest.mark.parametrize("late", ["", "model.late=1"])
def test_own_step_without_findings(late: str) -> None:
    words = ["run", "own-step-false-findings.py:make", "batch=256", "context=0", "device=cpu"]
    words += ["optimizer=custom", *late.split(), "--passes", "memory", "--json"]
    done = subprocess.run(
        [PROGRAM, *words], cwd=CASES / "memory", capture_output=True, text=True, check=True
    )
    record = json.loads(done.stdout)
    kinds = {finding["rule"] for finding in record["findings"]}
    wrong = ("previous-output-alive", "first-step-for-steady", "prediction-missed", "memory-grows")
    assert not kinds & {*wrong}
    assert record["memory"]["peak_allocated_bytes"] == (1_355_864 if late else 1_354_840)


def test_input_of_another_form_is_made_or_refused() -> None:
    line = "run hf:hf-parakeet batch=2 context=0 steps=1 warmup=1 --passes timing"
    _, printed = play(*line.split(), folder=CASES / "memory")
    check(printed, has=[r"finished|batch\(\) of a factory"], lacks=["shapes cannot be multiplied"])


def test_f1_a_cut_file_is_refused_at_once(tmp_path: Path) -> None:
    for events in (4_000, 80_000):  # at 589d74c four times longer for each doubling
        subprocess.run(
            [sys.executable, CASES / "reliability" / "f1-quadratic-name.py", str(events), "t.json"],
            cwd=tmp_path,
            check=True,
        )
        code, printed = play("inspect", "t.json", folder=tmp_path)
        assert code == 2
        check(printed, has=["not a valid chrome trace: it is truncated"])


def test_f2_contradicting_counters_are_said() -> None:
    code, printed = play("inspect", "f2-counters-contradict.json", folder=CASES / "reliability")
    assert code == 0
    check(printed, has=["contradict"], lacks=[r"25600\.0 %", r"-25500"])


def test_f3_contradicting_ends_are_said(tmp_path: Path) -> None:
    script = CASES / "reliability" / "f3-end-contradicts.py"
    subprocess.run([sys.executable, script, tmp_path / "s.pickle"], check=True)
    _, printed = play("inspect", "s.pickle", folder=tmp_path)
    check(printed, has=["contradict|disagree|differ"])


@pytest.mark.parametrize("section", ["", "--section kernels"])
def test_f4_csv_has_no_escapes(section: str) -> None:
    words = ["inspect", "f4-csv-escapes.json", "--csv", *section.split()]
    code, printed = play(*words, folder=CASES / "reliability")
    assert code == 0 and printed and "\x1b" not in printed


def test_f5_a_pass_ends_with_its_worker() -> None:
    line = f"run f5-child-holds-pipe/model.py:make {SHORT} --passes timing"
    code, printed = play(*line.split(), folder=CASES / "reliability")
    assert code == 0
    check(printed, has=["finished"], lacks=["hung"])


def test_f8_a_blank_message_fails_the_run() -> None:
    line = f"run f8-blank-message/model.py:make {STEP} --passes timing"
    code, printed = play(*line.split(), folder=CASES / "reliability")
    assert code == 1
    check(printed, has=["failed"], lacks=["Traceback"])


def test_f18_a_debugger_finds_no_input() -> None:
    line = f"run f18-breakpoint/model.py:make {SHORT} --passes timing"
    code, printed = play(*line.split(), folder=CASES / "reliability")
    assert code == 1
    check(printed, has=["failed"], lacks=["hung"])


def test_f16_memory_that_overflows_leaves_the_kernels() -> None:
    code, printed = play("inspect", "f16-counter-overflow.json", folder=CASES / "reliability")
    assert code == 0
    check(printed, has=["Kernels|Operators"], lacks=["OverflowError"])


@pytest.fixture
def run_home(sysbench_home: Path) -> Path:
    """Add a run with a trace to the home."""
    line = "run tiny steps=2 warmup=1 device=cpu --passes timing,trace"
    code, printed = play(*line.split(), folder=sysbench_home.parent)
    assert code == 0, printed
    return sysbench_home


@contextmanager
def served() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    process = subprocess.Popen(
        [PROGRAM, "serve", "last", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    text = ""
    while "}" not in text:
        text += process.stdout.readline().decode()
    yield json.loads(text)["url"], process
    process.terminate()


def test_f6_a_link_is_not_served(run_home: Path) -> None:
    (trace,) = run_home.glob("runs/*/trace/trace.json.gz")
    with served() as (url, _):
        kept = trace.rename(f"{trace}.kept")
        trace.symlink_to("/etc/hostname")
        try:
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"{url}trace.json.gz")
        finally:
            trace.unlink()
            kept.rename(trace)


def test_f7_clients_that_hang_up_leave_no_traceback(run_home: Path) -> None:
    with served() as (url, process):
        port = url.split(":")[2].split("/")[0]
        script = CASES / "reliability" / "f7-serve-tracebacks.py"
        subprocess.run([sys.executable, script, port], check=True)
        urlopen(url).read()
        process.terminate()
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


def test_f15_a_link_to_a_device_is_not_replaced(run_home: Path, tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to("/proc/self/fd/1")
    play("export", "last", "md", "-o", "out", "--force", folder=tmp_path)
    assert link.is_symlink()


def test_f10_no_caching_has_no_ledger_of_zero(null_gpu: NullGpu) -> None:
    done = null_gpu.sysbench(
        *("run", "tiny", "device=cuda", "--passes", "memory"), PYTORCH_NO_CUDA_MEMORY_CACHING=1
    )
    check(done.stdout + done.stderr, has=["PYTORCH_NO_CUDA_MEMORY_CACHING"], lacks=["gap 0.00 %"])


def test_f11_settings_are_those_that_were_in_force(null_gpu: NullGpu) -> None:
    model = CASES / "reliability" / "f11-tf32-in-factory" / "model.py"
    record = null_gpu.record(f"{model}:make", *SHORT.split(), "--passes", "timing")
    settings = json.dumps(record["environment"])
    assert '"allow_tf32": true' in settings or '"float32_matmul_precision": "high"' in settings


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_f12_malloc_async_is_timed(null_gpu: NullGpu, variable: str) -> None:
    words = ("run", "tiny", "device=cuda", "steps=2", "warmup=1", "--passes", "timing", "--json")
    done = null_gpu.sysbench(*words, **{variable: "backend:cudaMallocAsync"})
    assert len(json.loads(done.stdout)["timing"]["samples_ms"]) == 2


def test_f13_work_on_a_side_stream_is_in_the_step(null_gpu: NullGpu) -> None:
    model = CASES / "reliability" / "f13-side-stream" / "model.py"
    record = null_gpu.record(f"{model}:make", *SHORT.split(), "--passes", "timing")
    timing = record["timing"]
    said = [finding for finding in record["findings"] if "stream" in finding["why"]]
    assert said or timing["step"]["median_ms"] > 0.8 * timing["wall_ms"]


@pytest.mark.parametrize("code", [18, 12, 9, 3, 999])
def test_f17_a_gpu_that_is_left_out_is_named(null_gpu: NullGpu, code: int) -> None:
    line = ("run", "tiny", "steps=2", "warmup=1", "--passes", "timing")
    done = null_gpu.sysbench(*line, NVML_STUB_INIT=code)
    check(done.stdout + done.stderr, has=["NVML|NVIDIA"])
