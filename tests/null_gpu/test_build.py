"""Parts of the builder that need neither a compiler nor torch's CUDA build."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sysbench.core.machine.peaks import find_gpu
from tests.null_gpu.needs import Unfit, versions_of
from tests.null_gpu.place import MARK, ROOT, VARIABLE
from tests.null_gpu.tables import callback_numbers, cards_source

CARDS = tomllib.loads((Path(__file__).parent / "cards.toml").read_text())


@pytest.mark.parametrize("key", CARDS)
def test_each_card_is_the_one_of_the_table_of_peaks(key: str) -> None:
    card = CARDS[key]
    gpu = find_gpu(f"{card['name']} {MARK}")
    assert gpu is not None
    assert (card["multiprocessors"], card["bus_bits"]) == (gpu.sms, gpu.bus_bits)
    assert card["memory_clock_mhz"] == gpu.memory_mhz
    assert card["bytes_per_second"] == pytest.approx(gpu.bandwidth * 1e9, rel=0.01)
    for precision in {"fp32", "tf32", "bf16"} & gpu.tflops.keys():
        rate = card[f"{precision}_per_second"]
        assert rate == pytest.approx(gpu.tflops[precision] * 1e12, rel=0.01)


def test_each_card_carries_the_mark_in_its_name() -> None:
    text = cards_source(Path(__file__).parent / "cards.toml", MARK)
    assert text.count(MARK) == len(CARDS)


def test_calls_are_read_from_cuptis_header(tmp_path: Path) -> None:
    header = tmp_path / "cbid.h"
    header.write_text(
        "CUPTI_RUNTIME_TRACE_CBID_INVALID = 0,\n CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020 = 22,\n"
        "CUPTI_RUNTIME_TRACE_CBID_SIZE = 600,\n"
    )
    assert callback_numbers(header) == {"cudaFree_v3020": 22}


def torch_in(site: Path, cuda: str, *requirements: str) -> Path:
    """A ``site-packages`` with the data of a torch, without torch."""
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text(f"cuda: Optional[str] = {cuda}\n")
    (site / "torch-9.1.dist-info").mkdir()
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    text = f"Metadata-Version: 2.1\nName: torch\nVersion: 9.1\n{lines}"
    (site / "torch-9.1.dist-info" / "METADATA").write_text(text)
    return site


def test_versions_are_those_of_the_installed_torch(tmp_path: Path) -> None:
    site = torch_in(
        tmp_path,
        "'13.2'",
        'nvidia-cudnn-cu13==9.21.3.4; platform_system == "Linux"',
        "nvidia-nccl-cu13==2.30.1",
        'triton==5.0.1; platform_system == "Linux"',
    )
    versions = versions_of(site)
    assert (versions.torch, versions.cuda) == ("9.1", "13.2")
    assert (versions.cudnn, versions.nccl, versions.cublas) == (92103, 23001, 130200)
    assert versions.triton == "triton==5.0.1"


@pytest.mark.parametrize(("cuda", "reason"), [("None", "without CUDA"), ("'12.8'", "13 or later")])
def test_a_torch_that_cannot_be_served_is_named(tmp_path: Path, cuda: str, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        versions_of(torch_in(tmp_path, cuda))


def test_the_installer_says_plainly_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.null_gpu.install"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), VARIABLE: str(tmp_path / "venv")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "null GPU: not built, no gcc, readelf, nm on PATH\n"
    assert not (tmp_path / "venv").exists()
