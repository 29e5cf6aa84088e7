"""The CUDA build of torch on a null GPU: what its host side does is real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null_gpu.conftest import Make, NullGpu

pytestmark = pytest.mark.null_gpu

LAUNCH_CBID = 505
MIB = 1 << 20

# A bf16 training step, twice; the second one under the profiler.
STEP = """
import collections, json, os, tempfile, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
x = torch.zeros(64, 256, device="cuda")
def step():
    with torch.autocast("cuda", torch.bfloat16):
        loss = layers(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
step()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    step()
with tempfile.TemporaryDirectory() as folder:
    profiler.export_chrome_trace(path := os.path.join(folder, "trace.json"))
    events = json.load(open(path))["traceEvents"]
by_kind = collections.defaultdict(list)
for event in events:
    by_kind[event.get("cat")].append(event)
kernels = sorted(by_kind.get("kernel", ()), key=lambda event: event["ts"])
"""

FACTS = (
    STEP
    + """
calls = {e["args"]["correlation"]: e for e in by_kind["cuda_runtime"] + by_kind["cuda_driver"]}
facts = {
    "name": torch.cuda.get_device_name(),
    "capability": torch.cuda.get_device_capability(),
    "kernels": [e["name"] for e in kernels],
    "callers": collections.Counter(
        calls[e["args"]["correlation"]]["args"].get("cbid") for e in kernels),
    "ordered": all(a["ts"] + a["dur"] <= b["ts"] for a, b in zip(kernels, kernels[1:])),
}
q = torch.zeros(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
choice = torch.nn.attention.SDPBackend
facts["bf16"] = choice(torch._fused_sdp_choice(q, q, q, is_causal=True)).name
q = q.float()
facts["fp32"] = choice(torch._fused_sdp_choice(q, q, q, is_causal=True)).name
torch.cuda.memory._record_memory_history()
keep = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
snapshot = torch.cuda.memory._snapshot()
facts["history"] = collections.Counter(e["action"] for e in snapshot["device_traces"][0])
torch.cuda.memory._record_memory_history(enabled=None)
try:
    while True:
        keep.append(torch.empty(1 << 32, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    facts["oom"] = str(error)
facts["held"] = sum(piece.numel() for piece in keep)
print(json.dumps(facts))
"""
)


@pytest.fixture(scope="module")
def h100(make_null_gpu: Make) -> dict[str, Any]:
    facts: dict[str, Any] = make_null_gpu().python(FACTS)
    return facts


def test_the_card_has_its_name_with_the_mark(h100: dict[str, Any]) -> None:
    assert h100["name"] == "NVIDIA H100 80GB HBM3 (null GPU)"
    assert h100["capability"] == [9, 0]


def test_launches_are_the_calls_that_cuda_13_compiles_to(h100: dict[str, Any]) -> None:
    callers = {int(key): count for key, count in h100["callers"].items()}
    assert callers[LAUNCH_CBID] > 10
    assert 211 not in callers


def test_kernels_are_named_as_on_the_card_and_follow_each_other(h100: dict[str, Any]) -> None:
    assert any(name.startswith("nvjet_") for name in h100["kernels"])
    assert any("FusedAdam" in name for name in h100["kernels"])
    assert h100["ordered"]


def test_attention_is_what_this_card_would_take(h100: dict[str, Any]) -> None:
    assert h100["bf16"] == "CUDNN_ATTENTION"
    assert h100["fp32"] == "EFFICIENT_ATTENTION"


def test_memory_is_recorded_and_runs_out_where_the_card_ends(h100: dict[str, Any]) -> None:
    assert h100["history"]["alloc"] == 3
    assert "GPU 0 has a total capacity of 79.11 GiB" in h100["oom"]
    left = (81008 - 526) * MIB - h100["held"]
    assert 0 < left < (1 << 32) + 256 * MIB


def test_older_cards_have_older_kernels(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(FACTS, card="A100")
    assert facts["name"] == "NVIDIA A100-SXM4-40GB (null GPU)"
    assert facts["bf16"] == "FLASH_ATTENTION"
    assert any(name.startswith("ampere_bf16_") for name in facts["kernels"])


def test_a_card_runs_the_code_of_an_older_one_where_torch_has_none_of_its_own(
    null_gpu: NullGpu,
) -> None:
    code = "import torch; x = torch.arange(5000, device='cuda'); print(len(x.sort().values))"
    assert null_gpu.python(code, card="rtx4090") == 5000


def test_a_refused_cupti_leaves_a_trace_without_kernels(null_gpu: NullGpu) -> None:
    counts = null_gpu.python(
        STEP + "print(json.dumps({key: len(found) for key, found in by_kind.items() if key}))",
        cupti="refused",
    )
    assert counts["cpu_op"] > 10
    assert "kernel" not in counts
    assert "cuda_runtime" not in counts


def test_a_cudnn_of_another_version_is_refused_by_torch(null_gpu: NullGpu) -> None:
    text = null_gpu.python(
        """
import json, torch
try:
    answer = torch.backends.cudnn.version()
except RuntimeError as error:
    answer = str(error)
print(json.dumps(answer))
""",
        cudnn=80902,
    )
    assert "(8, 9, 2)" in text


def test_two_devices_have_memory_of_their_own(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        """
import json, torch
one = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda:1")
back = one[:4].to("cuda:0").cpu().tolist()
print(json.dumps([torch.cuda.device_count(), back, one.device.index,
    [torch.cuda.memory_reserved(d) >> 20 for d in (0, 1)],
    [(t - f) >> 20 for f, t in map(torch.cuda.mem_get_info, (0, 1))]]))
""",
        count=2,
    )
    assert facts == [2, [0] * 4, 1, [2, 100], [526 + 2, 526 + 100]]


def test_expandable_segments_are_charged_as_they_grow(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        """
import json, torch
used = lambda: (lambda f, t: (t - f) >> 20)(*torch.cuda.mem_get_info())
before, keep, grown = used(), [], []
for _ in range(3):
    keep.append(torch.empty(40 << 20, dtype=torch.uint8, device="cuda"))
    grown.append(used() - before)
segments = [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()]
keep.clear()
torch.cuda.empty_cache()
print(json.dumps([grown, used() - before, segments]))
""",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert facts == [[40, 80, 120], 0, [True]]


def test_one_process_reduces_over_two_devices(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        """
import json, torch
from torch.cuda import nccl
arrays = [torch.ones(1 << 20, device=f"cuda:{n}") for n in range(2)]
for _ in range(3):
    nccl.all_reduce(arrays)
for n in range(2):
    torch.cuda.synchronize(n)
print(json.dumps([nccl.is_available(arrays), torch.cuda.current_device()]))
""",
        count=2,
    )
    assert facts == [True, 0]


@pytest.mark.parametrize("visible", ["0", "2,0", "0,0", "1,2,1", "0,-1,0", "0,7,1", ""])
def test_as_many_devices_are_offered_as_torch_has(null_gpu: NullGpu, visible: str) -> None:
    """A repeated entry hides all of them."""
    code = """
import json, torch
from sysbench.core.machine.devices import find_cuda
print(json.dumps([len(find_cuda().devices), torch.cuda.device_count()]))
"""
    offered, seen = null_gpu.python(code, count=3, CUDA_VISIBLE_DEVICES=visible)
    assert offered == seen
