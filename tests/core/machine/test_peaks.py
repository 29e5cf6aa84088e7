"""The table of peaks follows from its own numbers; nothing that is not known is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.machine.peaks import Peak, find_gpu, gpus, memory_bandwidth, parse_peak, roof_of
from sysbench.core.spec.choices import precision_named

H100 = {"device": {"name": "NVIDIA H100 80GB HBM3"}}
LOOSE_TFLOPS = {"l40s": 0.0125}
"""The data sheet says 362 where its own numbers make 366."""
LOOSE_BANDWIDTH = {
    **{"h100-nvl": 0.022, "h200-sxm": 0.025, "gh200": 0.006, "gh200-144gb": 0.025},
    **{"b200": 0.023, "mi300x": 0.005},
}
"""Their memory clocks are rounded up, or the quoted figures down."""


@pytest.mark.parametrize("key", gpus())
def test_the_quoted_peaks_follow_from_units_and_clocks(key: str) -> None:
    gpu = gpus()[key]
    tolerance = LOOSE_TFLOPS.get(key, 0.003)
    formula = gpu.sms * gpu.flops_per_clock * gpu.clock_mhz * 1e6 / 1e12
    assert formula == pytest.approx(gpu.tflops["fp16"], rel=tolerance)
    if "fp8" in gpu.tflops:
        assert gpu.tflops["fp8"] == pytest.approx(2 * gpu.tflops["fp16"], rel=0.001)
    if "fp4" in gpu.tflops:
        assert gpu.tflops["fp4"] == pytest.approx(4 * gpu.tflops["fp16"], rel=0.001)
    if "bf16" in gpu.tflops:
        assert gpu.tflops["bf16"] == gpu.tflops["fp16"]
        assert gpu.tflops["tf32"] == pytest.approx(gpu.tflops["bf16"] / 2, rel=0.005)
    if "fp32" in gpu.tflops:
        clock_mhz = gpu.fp32_clock_mhz or gpu.clock_mhz
        formula = gpu.sms * gpu.fp32_flops_per_clock * clock_mhz * 1e6 / 1e12
        assert formula == pytest.approx(gpu.tflops["fp32"], rel=0.006)


@pytest.mark.parametrize("key", gpus())
def test_the_quoted_bandwidth_follows_from_the_memory(key: str) -> None:
    gpu = gpus()[key]
    formula = memory_bandwidth(gpu.memory_mhz, gpu.bus_bits) / 1e9
    assert formula == pytest.approx(gpu.bandwidth, rel=LOOSE_BANDWIDTH.get(key, 0.0025))


def test_every_name_is_of_one_gpu() -> None:
    names = [name.casefold() for gpu in gpus().values() for name in gpu.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm5"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("nvidia l40s", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4080", "rtx-4080"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "rtx-pro-6000-blackwell-workstation",
        ),
        ("NVIDIA A30", "a30"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA A800-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA H800", "h100-sxm5"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 80GB HBM3 (null GPU)", "h100-sxm5"),
    ],
)
def test_a_gpu_is_found_by_its_drivers_name(name: str, key: str) -> None:
    assert find_gpu(name) is gpus()[key]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA H20",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "",
    ],
)
def test_a_gpu_of_another_name_is_not_taken_for_one_that_is_known(name: str) -> None:
    assert find_gpu(name) is None


def test_the_peak_is_of_the_precision() -> None:
    roofs = {
        precision: roof_of("cuda:0", precision, precision_named(precision).peak_key, H100)[0]
        for precision in ("fp32", "tf32", "bf16", "fp16", "bf16-pure")
    }
    peaks = {precision: roof and roof.peak_flops / 1e12 for precision, roof in roofs.items()}
    assert peaks == pytest.approx(
        {"fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "bf16-pure": 989.4}
    )


def test_only_fused_attention_in_fp32_has_a_peak_of_its_own() -> None:
    for name, expected in (("fp32", 494.7e12), ("tf32", None), ("bf16", None)):
        roof, _ = roof_of("cuda:0", name, precision_named(name).peak_key, H100)
        assert roof is not None
        assert roof.attention_flops == (expected and pytest.approx(expected))
        assert roof.of("gemm") is roof
        assert roof.of("attention").peak_flops == pytest.approx(expected or roof.peak_flops)
    given, _ = roof_of("cuda:0", "fp32", "fp32", H100, Peak(tflops=50.0))
    assert given is not None
    assert given.of("attention").peak_flops == 50e12


@pytest.mark.parametrize(
    ("device", "precision", "environment", "reason"),
    [
        ("cpu", "fp32", {"cpu": {"model": "EPYC"}}, "CPU"),
        ("cuda:0", "bf16", {"device": {"name": "NVIDIA Z999"}}, "NVIDIA Z999 is not in the table"),
        ("cuda:0", "bf16", {"device": {"name": "Tesla T4"}}, "no bf16 peak for Tesla T4"),
        ("cuda:0", "bf16", {}, "did not report its name"),
        ("cuda:0", "bf16", {"device": None, "nvidia": None}, "did not report its name"),
    ],
)
def test_what_is_not_known_has_a_reason_and_no_number(
    device: str, precision: str, environment: dict[str, Any], reason: str
) -> None:
    roof, why = roof_of(device, precision, precision, environment)
    assert roof is None
    assert reason in why
    assert "--peak" in why


def test_the_device_says_its_bandwidth_before_the_table() -> None:
    memory = {"memory_clock_max_mhz": 2000, "memory_bus_bits": 4096}
    told_by_torch = {"device": {**H100["device"], **memory}}
    told_by_nvml = {**H100, "nvidia": {"driver": "590", "device0": {**H100["device"], **memory}}}
    of_another = {**H100, "nvidia": {"device0": {"name": "NVIDIA L4", **memory}}}
    for environment, bandwidth in (
        (told_by_torch, 2048e9),
        (told_by_nvml, 2048e9),
        (of_another, 3350e9),
        (H100, 3350e9),
    ):
        roof, _ = roof_of("cuda:0", "bf16", "bf16", environment)
        assert roof is not None
        assert roof.bandwidth == pytest.approx(bandwidth)
        assert roof.bandwidth_source


def test_a_slice_of_a_gpu_has_not_the_bandwidth_of_all_of_it() -> None:
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    device = {"name": name, "memory_clock_max_mhz": 2619, "memory_bus_bits": 5120}
    roof, _ = roof_of("cuda:0", "bf16", "bf16", {"device": device}, Peak(tflops=100.0))
    assert roof is not None
    assert roof.bandwidth is None
    assert roof.ridge is None


def test_what_is_given_goes_before_the_table_and_works_on_a_cpu() -> None:
    roof, why = roof_of("cpu", "fp32", "fp32", {}, parse_peak("0.08,20"))
    assert roof is not None
    assert not why
    assert (roof.peak_flops, roof.bandwidth) == pytest.approx((80e9, 20e9))
    assert roof.ridge == pytest.approx(4.0)
    assert "--peak" in roof.peak_source
    only_peak, _ = roof_of("cuda:0", "bf16", "bf16", H100, parse_peak("500"))
    assert only_peak is not None
    assert only_peak.peak_flops == pytest.approx(500e12)
    assert only_peak.bandwidth == pytest.approx(3350e9)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1,2,3", "1,", "1,0"])
def test_a_peak_that_is_no_peak_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--peak"):
        parse_peak(text)
