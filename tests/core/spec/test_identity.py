"""Identities of specs that are stored on people's disks: a later version gives the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.spec.spec import RunSpec, parse_spec

FROZEN = Path(__file__).parents[2] / "fixtures" / "tiny-cpu" / "record.json"


def test_the_frozen_record_keeps_its_identity() -> None:
    """A new key whose default is part of the identity would separate every stored run."""
    record: dict[str, Any] = json.loads(FROZEN.read_bytes())
    defaults = RunSpec()
    settings = {
        name: value for name, value in record["spec"].items() if value != getattr(defaults, name)
    }
    assert record["identity"] == "df4bd34483dc32dd"
    assert RunSpec(**settings).identity == record["identity"]
    assert RunSpec(**record["spec"]).identity == record["identity"]


@pytest.mark.parametrize(
    ("settings", "identity"),
    [
        (
            {"model": "cs336-2025/2.7B", "precision": "bf16", "device": "cuda:0", "context": 512},
            "d95288036215b922",
        ),
        (
            {"model": "tiny", "compile": "default", "step": "inference", "device": "cpu"},
            "c1ba3980f9138b50",
        ),
        (
            {
                "workload": "attention",
                "d_model": 64,
                "heads": 1,
                "batch": 8,
                "context": 1024,
                "device": "cpu",
            },
            "70e0b01a1fcdc56f",
        ),
        ({"model": "tiny", "ranks": 2, "parallel": "flat", "device": "cpu"}, "e2848df4e2a57aa5"),
    ],
)
def test_identities_stay(settings: dict[str, Any], identity: str) -> None:
    assert parse_spec(settings).identity == identity
