"""Facts that a worker reports of torch and its device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sysbench.core.record.environment import is_simulated
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.boot import describe_torch


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=2**36,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def refuse() -> int:
    """What `torch.backends.cudnn.version` does where it found another library than its own."""
    raise RuntimeError("cuDNN version incompatibility: PyTorch was compiled against (9, 19, 0)")


def test_a_cudnn_of_another_version_ends_no_pass(
    card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    facts = describe_torch(RunSpec(device="cuda:0"))
    assert "cudnn" not in facts["torch"]
    assert "incompatibility" in facts["missing"]["torch.cudnn"]
    assert facts["device"]["name"] == "NVIDIA H100 80GB HBM3"


def test_the_version_of_cudnn_is_a_fact(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    facts = describe_torch(RunSpec(device="cuda:0"))
    assert facts["torch"]["cudnn"] == 91900
    assert "missing" not in facts


@pytest.mark.parametrize("mark", ["", " (null GPU)"])
def test_only_a_card_of_tests_is_simulated(monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    properties = SimpleNamespace(
        name=f"NVIDIA H100 80GB HBM3{mark}",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=2**36,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    facts = describe_torch(RunSpec(device="cuda:0"))
    assert is_simulated(facts) == bool(mark)
    assert ("is_simulated" in facts["device"]) == bool(mark), "records of cards stay as they were"
