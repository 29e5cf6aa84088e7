"""`estimate`: exact mode, largest fit, tables."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from rich.cells import cell_len

from sysbench.core.errors import WorkerFailed
from sysbench.core.formatting import format_bytes
from sysbench.core.machine.peaks import find_card
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.dry_run_client import Estimator
from sysbench.core.predict.fit_grid import (
    available_memory,
    card_elsewhere,
    closed_form_fits,
    with_fragments,
)
from sysbench.core.predict.sizes import CONTEXT_BYTES
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.cli import main
from sysbench.tui.commands import estimate
from sysbench.tui.commands.registry import parse_arguments
from sysbench.tui.commands.spec_arguments import names_own_model

CUDA = ("--set", "device=cuda", "--set", "model=cs336-2025/large")


@pytest.fixture(autouse=True)
def own_home(sysbench_home: object) -> None:
    """Past predictions of this machine stay out of what is printed."""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(("estimate", *arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_a_size_that_one_family_has_is_that_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "2.7b") == document(capsys, "cs336-2025/2.7B")


def test_exact_mode_adds_phases_blocks_and_roofline_times(
    one_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*CUDA, "--exact", "--peak", "60,3350", "--capacity", "80GiB")
    exact = document(capsys, *options)
    spec = RunSpec(model="cs336-2025/large", device="cuda:0")
    assert exact["peak_bytes"] == pytest.approx(predict(spec).peak_bytes, rel=0.002)
    assert exact["closed_form_peak_bytes"] == predict(spec).peak_bytes
    assert sum(row["bytes"] for row in exact["ledger"]) == exact["peak_bytes"]
    assert [row["name"] for row in exact["block_ledger"]] == [
        row["name"] for row in exact["ledger"]
    ]
    phases = {phase["phase"]: phase for phase in exact["phases"]}
    assert list(phases) == ["forward", "loss", "backward", "optimizer"]
    assert phases[exact["peak_phase"]]["peak_bytes"] == exact["peak_bytes"]
    assert phases["forward"]["flops"] == exact["flops"]["forward"]
    assert exact["roofline_ms"] == pytest.approx(sum(p["roofline_ms"] for p in phases.values()))
    # No product can be faster than the peak.
    assert exact["roofline_ms"] > exact["flops"]["step"] / 60e12 * 1e3
    assert (exact["fits"], exact["verdict"]) == (True, "fits")
    # Blocks are larger than the tensors in them, and segments than the blocks.
    assert exact["peak_bytes"] < exact["allocated_bytes"] < exact["reserved_bytes"]
    assert exact["reserved_bytes"] < exact["room_bytes"] < 80 * 2**30
    assert "missing" not in exact


def test_the_ledger_of_a_phase_is_shown_and_what_later_steps_have_more(
    one_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "device=cpu", "--set", "context=512", "--set", "batch=2", "--phase")
    phases = {row["phase"]: row for row in document(capsys, *options, "loss")["phases"]}
    text = printed(capsys, *options, "loss")
    assert "Peak memory of loss, predicted (loss)" in text
    rows = (*phases["loss"]["ledger"], {"name": "peak", "bytes": phases["loss"]["peak_bytes"]})
    for row in rows:
        assert re.search(rf"{row['name']} +{re.escape(format_bytes(row['bytes']))} ", text)
    state = {row["name"]: row["bytes"] for row in phases["loss"]["ledger"]}["optimizer state"]
    assert f"later ones at {format_bytes(state)} more: optimizer state" in text
    assert main(("estimate", *options, "head")) == 2
    assert "one of forward, loss, backward, optimizer" in capsys.readouterr().err


def test_exact_mode_says_why_there_is_no_roofline_time(
    one_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "--exact", "--set", "device=cpu")
    assert "Peak and matrix products by phase" in text
    assert "roofline time: n/a, no peak is known for a CPU" in text
    assert "for importing torch" in text


def test_one_process_answers_for_a_whole_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = []

    class Counted(Estimator):
        def __exit__(self, *exception: object) -> None:
            processes.append(self.pid)
            super().__exit__(*exception)

    monkeypatch.setattr(estimate, "Estimator", Counted)
    options = ("--set", "device=cpu", "--table", "context=16,32", "--table", "batch=1,2")
    exact = document(capsys, "--exact", *options)
    closed = document(capsys, *options)
    assert len(processes) == 1 and processes[0] is not None
    assert len(exact["cells"]) == len(closed["cells"]) == 4
    for ours, other in zip(exact["cells"], closed["cells"], strict=True):
        assert ours["settings"] == other["settings"]
        assert ours["peak_bytes"] == pytest.approx(other["peak_bytes"], rel=0.01)
    assert exact["method"] != closed["method"]


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        *(("hf:ORG/NAME", True), ("batch=1 net.py:make", True), ("model=net:make", True)),
        *(("--model net:make", True), ("--set model=net:make", True), ("", False)),
        *(("tiny", False), ("model=tiny model.name=a:b", False), ("--set batch=2", False)),
    ],
)
def test_a_model_of_ones_own_is_seen_before_anything_is_read(words: str, is_named: bool) -> None:
    assert names_own_model(parse_arguments(["estimate", *words.split()])) == is_named


def test_a_preset_in_the_place_of_a_model_of_ones_own_goes_by_the_closed_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    replaced = document(capsys, "net.py:make", "--set", "model=tiny", "--set", "device=cpu")
    assert replaced == document(capsys, "tiny", "--set", "device=cpu")


@pytest.mark.parametrize("key", ["batch", "context"])
def test_fit_names_the_largest_and_what_the_next_lacks(
    capsys: pytest.CaptureFixture[str], key: str
) -> None:
    found = document(capsys, *CUDA, "--fit", key, "--capacity", "24GiB")
    spec = RunSpec(model="cs336-2025/large", device="cuda:0")
    room = available_memory(spec, 24 * 2**30)
    assert closed_form_fits(predict(spec.changed(**{key: found["largest"]})).peak_bytes, room)
    assert found["next"] == found["largest"] + 1
    assert predict(spec.changed(**{key: found["next"]})).peak_bytes == found["next_peak_bytes"]
    assert found["over_bytes"] == with_fragments(found["next_peak_bytes"], room) - room.least > 0
    assert (found["room_bytes"], found["doubt_bytes"]) == (room.least, room.uncertainty_bytes)
    assert found["beyond"] > found["next"]
    text = " ".join(printed(capsys, *CUDA, "--fit", key, "--capacity", "24GiB").split())
    assert f"The largest {key} that fits in 24.0 GiB is {found['largest']:,}" in text
    # It may fit, so it is not said to need more.
    assert f"{key} {found['next']:,} may lack" in text and "more." not in text
    assert f"{found['beyond']:,} and more will not" in text


SERVED = {"model": "cs336-2025/large", "step": "decode", "precision": "bf16-pure"}


@pytest.mark.parametrize(
    ("asked", "key", "block"),
    [("sequences", "batch", 16), ("batch", "batch", 7), ("context", "context", 32)],
)
def test_a_served_cache_is_fitted_by_type_and_layout(
    capsys: pytest.CaptureFixture[str], asked: str, key: str, block: int
) -> None:
    settings = SERVED | {"context": 1000, "batch": 6}
    words = [f"{name}={value}" for name, value in settings.items()]
    options = (*words, "--card", "h100", "--fit", asked, "--block-size", str(block))
    found = document(capsys, *options)
    spec = RunSpec(device="cuda:0", **settings)  # type: ignore[arg-type]
    card = find_card("h100")
    room = available_memory(spec, card.memory_bytes, card_elsewhere(card))
    assert card.driver_bytes is not None
    # As vLLM computes it: its share of what CUDA calls the total, less what torch does not count.
    share = 0.9 * (card.memory_bytes - card.driver_bytes) - CONTEXT_BYTES

    def fits(row: dict[str, Any], value: int) -> bool:
        predicted = predict(spec.changed(**{key: value}), card.capability)
        cache = sum(one.bytes for one in predicted.ledger if one.name == "kv cache")
        sequences, tokens = (6, value) if key == "context" else (value, 1000)
        tokens += -tokens % row["block_size"]
        size = sequences * tokens * 2 * 36 * 1280 * {"bf16": 2, "fp8": 1}[row["cache"]]
        total = predicted.peak_bytes - cache + size
        return total <= share if "vLLM" in row["memory"] else closed_form_fits(total, room)

    rows = found["layouts"]
    assert [(row["block_size"], row["cache"]) for row in rows] == [
        (size, cache) for size in (1, block, 16) for cache in ("bf16", "fp8")
    ]
    assert found["key"] == key and rows[0]["largest"] == found["largest"]
    for row in rows:
        assert fits(row, row["largest"]) and not fits(row, row["largest"] + row["block_size"])
    text = " ".join(printed(capsys, *options).split())
    assert "closed form" in text and "gpu_memory_utilization of CacheConfig" in text


def test_sequences_and_blocks_are_of_steps_with_a_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options, word in (
        (("--fit", "sequences"), "batch, for a step without a cache"),
        (("--fit", "batch", "--block-size", "16"), "step=decode"),
        (("step=decode", "--block-size", "16"), "only with --fit"),
        (("step=decode", "--fit", "batch", "--block-size", "0"), "1 or more"),
    ):
        assert main(("estimate", "tiny", "--card", "h100", *options)) == 2
        assert word in capsys.readouterr().err


def test_savings_are_a_table_with_the_most_first(capsys: pytest.CaptureFixture[str]) -> None:
    options = (*CUDA, "--set", "context=1024", "--savings")
    found = document(capsys, *options)
    assert found["method"] == "closed form"
    first = found["savings"][0]
    lines = printed(capsys, *options).splitlines()
    ((key, value),) = first["settings"].items()
    row = next(line for line in lines if line.lstrip().startswith(f"{key}={value} "))
    assert first["price"] in row
    assert any(line.startswith(f"{key}={value} saves the most, ") for line in lines)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *options, "--csv"))))
    assert [int(row["saved_bytes"]) for row in rows] == [
        row["saved_bytes"] for row in found["savings"]
    ]


def test_exact_mode_advises_expandable_segments_where_they_give_room(
    one_process: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    size = ("--set", "device=cuda", "--set", "model=cs336-2025/small", "--set", "context=512")
    options = (*size, "--exact", "--fit", "batch", "--capacity", "12GiB")
    found = document(capsys, *options)
    assert found["expandable_largest"] > found["largest"] > 0
    assert found["peak_bytes"] < found["reserved_bytes"] < found["room_bytes"]
    text = " ".join(printed(capsys, *options).split())
    assert f"expandable_segments:True: {found['expandable_largest']:,}" in text
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    again = document(capsys, *options)
    assert (again["largest"], again["expandable_largest"]) == (found["expandable_largest"], None)


def test_workspaces_are_those_of_the_capability(
    one_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ("--set", "device=cuda:99", "--set", "model=tiny")
    unknown = document(capsys, *tiny)
    assert unknown["compute_capability"] is None
    # Two threads multiply: 32 MiB each on Hopper, 8.125 MiB before it.
    fewer = 2 * (32 * 2**20 - 8_519_680)
    for options in ((), ("--exact",)):
        ampere = document(capsys, *tiny, *options, "--capability", "8.0")
        assert ampere["compute_capability"] == "8.0"
        assert unknown["peak_bytes"] - ampere["peak_bytes"] == pytest.approx(fewer, abs=64)
    assert "set --capability for another" in " ".join(printed(capsys, *tiny).split())
    assert "--capability" not in printed(capsys, *tiny, "--capability", "8.0")


def test_a_table_goes_to_csv_and_markdown_as_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = (*CUDA, "--table", "context=128,256", "--capacity", "16GiB")
    cells = document(capsys, *options)["cells"]
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *options, "--csv"))))
    assert [int(row["peak_bytes"]) for row in rows] == [cell["peak_bytes"] for cell in cells]
    assert "| context" in printed(capsys, *options, "--md")


@pytest.mark.parametrize("width", [80, 100])
def test_tables_keep_to_the_width(
    one_process: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = ("--table", "context=128,256", "--table", "precision=fp32,tf32", "--set", "device=cpu")
    for options in (table, ("--fit", "batch", *CUDA, "--capacity", "1GiB"), ("--exact", *CUDA)):
        for line in printed(capsys, *options).splitlines():
            assert cell_len(line) <= width, line


def test_a_device_that_is_not_here_is_predicted_without_a_capacity(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--set", "device=cuda:99")
    assert (found["capacity_bytes"], found["fits"]) == (None, None)
    assert "--capacity" in found["missing"]["capacity_bytes"]
    assert found["peak_bytes"] == predict(RunSpec(device="cuda:0")).peak_bytes


QUESTION = ("--card", "h100", "cs336-2025/2.7B", "context=2048", "precision=bf16")
"""Does 2.7B at context 2048 in bf16 fit 80 GB, and with what batch?"""


def test_a_card_that_is_not_here_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    h100 = find_card("h100")
    sdpa = (*QUESTION, "attention=sdpa", "--fit", "batch")
    found = document(capsys, *sdpa)
    spec = RunSpec(
        model="cs336-2025/2.7B", context=2048, precision="bf16", attention="sdpa", device="cuda:0"
    )
    room = available_memory(spec, h100.memory_bytes, card_elsewhere(h100))
    peaks = [
        predict(spec.changed(batch=found["largest"] + more), "9.0").peak_bytes for more in (0, 1)
    ]
    assert [closed_form_fits(peak, room) for peak in peaks] == [True, False]
    assert (found["card"], found["capacity_bytes"]) == (h100.name, h100.memory_bytes)
    assert (found["room_bytes"], found["doubt_bytes"]) == (room.least, room.uncertainty_bytes)
    largest = found["largest"]
    answer = f"The largest batch that fits in 79.6 GiB (H100 80GB HBM3) is {largest}; batch"
    assert any(line.startswith(answer) for line in printed(capsys, *sdpa).splitlines())


def test_a_card_has_three_verdicts_each_with_its_margin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, verdict, margin in (
        (("attention=sdpa", "batch=1"), "Fits: ", " to spare."),
        (("batch=1",), "May not fit: ", "it may lack "),
        (("batch=2",), "Does NOT fit: ", " more."),
    ):
        text = " ".join(printed(capsys, *QUESTION, *words).split())
        assert verdict in text and "(H100 80GB HBM3), " in text and margin in text
        assert "third d_ff matrix adds 0.84 G" in text
    assert "use --savings to see" in " ".join(printed(capsys, *QUESTION, "--fit", "batch").split())


def test_a_fit_by_releasing_the_cache_says_so(
    one_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--exact", "tiny", "device=cuda", "batch=8", "context=512", "--memory-limit")
    for limit, margin in (("500MiB", " to spare."), ("440MiB", "MiB of its cache for it.")):
        text = " ".join(printed(capsys, *words, limit).split())
        (answer,) = re.findall(r"Fits: .*?\.(?= )", text)
        assert answer.endswith(margin) and "-" not in answer


def test_a_card_brings_its_workspaces_and_its_roof(
    one_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ("--exact", "tiny", "precision=bf16")
    h100, a100 = (document(capsys, *tiny, "--card", card) for card in ("h100", "a100-80gb"))
    assert (h100["compute_capability"], a100["compute_capability"]) == ("9.0", "8.0")
    assert h100["peak_bytes"] > a100["peak_bytes"]
    assert 0 < h100["roofline_ms"] < a100["roofline_ms"]


def test_a_size_in_gigabytes_says_what_it_is_taken_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("tiny", "--capacity", "80 GB", "device=cuda")
    assert document(capsys, *options)["capacity_bytes"] == 80 * 10**9
    text = " ".join(printed(capsys, *options).split())
    assert "80 GB means 80,000,000,000 bytes, 74.5 GiB" in text
    assert "see --card: a100-80gb 80.0 GiB, h100 79.6 GiB" in text
    assert "for the CPU" not in text
    text = printed(capsys, "tiny", "--capacity", "80GiB", "device=cpu")
    assert " means " not in text and "predicted for the CPU" in text


def test_memory_that_is_not_predicted_is_null_with_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--set", "compile=default", "--set", "device=cpu")
    assert (found["peak_bytes"], found["ledger"], found["fits"]) == (None, [], None)
    assert "torch.compile" in found["missing"]["peak_bytes"]
    assert "Peak memory: n/a" in printed(capsys, "--set", "compile=default")


def test_a_compiled_step_is_shown_beside_the_eager_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ("tiny", "compile=default", "step=forward+backward", "device=cpu", "--exact")
    with Estimator() as own:  # answers twice what it computed once
        monkeypatch.setattr(estimate, "Estimator", lambda: nullcontext(own))
        found, text = document(capsys, *spec), printed(capsys, *spec)
    assert found["saved_activation_bytes"] < found["eager"]["saved_activation_bytes"]
    assert found["peak_bytes"] < found["eager"]["peak_bytes"]
    assert found["closed_form_peak_bytes"] is None and found["roofline_ms"] is None
    assert "fused kernels" in found["missing"]["roofline_ms"]
    assert "partitioner" in found["limits"][0]
    assert "Eager and compiled, predicted" in text and "saved for backward" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fit", "batch", "--set", "device=cuda:99"], ["--capacity", "cuda:99", "24GiB"]),
        (["--capacity", "24G"], ["--capacity = '24G'", "24GiB", "80GB"]),
        (["--card", "a100"], ["--card = 'a100'", "a100-80gb or a100-40gb"]),
        (["--card", "h100", "device=cpu"], ["device = 'cpu'", "h100"]),
        (["--card", "h100", "--capability", "8.0"], ["--capability = '8.0'", "--card"]),
        (["--capacity", "0"], ["--capacity = '0'"]),
        (["--capability", "ampere"], ["--capability = 'ampere'", "8.0"]),
        (["--table", "context"], ["--table = 'context'", "KEY=VALUE"]),
        (["--table", "batch=0"], ["batch = '0'", "from 1"]),
        (["--exact", "compile=default", "compile_backend=eager"], ["--exact", "inductor"]),
        (["--exact", "compile=default", "checkpoint=1"], ["--exact", "Inductor recomputes"]),
        (["--fit", "batch", "--exact", "compile=default"], ["--fit", "one step on one device"]),
        (["--world", "dp=2", "compile=default"], ["--world", "one step on one device"]),
        (["--exact", "--peak", "fast"], ["--peak = 'fast'", "989"]),
        (["--set", "workload=accumulation"], ["workload = 'accumulation'", "no model"]),
        (
            ["--exact", "--set", "workload=attention", "--set", "d_model=64"],
            ["workload = 'attention'", "exact mode"],
        ),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    assert main(("estimate", *arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert all(word in captured.err for word in words)


@pytest.mark.parametrize(
    ("flags", "is_named"), [({"avx2"}, False), ({"avx512f", "avx512_bf16"}, True)]
)
def test_what_onednn_takes_for_itself_is_named_where_it_takes_any(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: set[str],
    is_named: bool,
) -> None:
    monkeypatch.setattr("sysbench.tui.commands.estimate_answers.cpu_flags", lambda: flags)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    options = ("--set", "device=cpu", "--set", "precision=bf16")
    missing = document(capsys, *options).get("missing", {})
    assert ("ledger.library workspace" in missing) == is_named
    text = " ".join(printed(capsys, *options).split())
    assert ("library workspace: oneDNN's memory within bf16 products" in text) == is_named


def test_a_process_that_fails_is_one_message_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict_one(self: Estimator, spec: RunSpec, capability: str | None) -> None:
        raise WorkerFailed("the process of exact mode was killed by SIGKILL")

    monkeypatch.setattr(Estimator, "predict", predict_one)
    assert main(("estimate", "--exact")) == 1
    assert capsys.readouterr().err.endswith("killed by SIGKILL\n")


def test_nothing_slow_is_imported_before_the_process_of_exact_mode_starts() -> None:
    code = (
        "import sys, sysbench.tui.cli, sysbench.tui.commands.estimate; "
        "print({'numpy', 'pandas', 'textual', 'torch'} & set(sys.modules))"
    )
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
