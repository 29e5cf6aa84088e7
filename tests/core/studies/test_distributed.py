"""The studies of several ranks: their small variants can run on any machine."""

from __future__ import annotations

import pytest

from sysbench.core.machine import devices
from sysbench.core.spec.passes import check_passes
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import expand, with_variant


@pytest.mark.parametrize("name", ["ddp", "all-reduce", "sharded-optimizer"])
def test_every_cell_of_a_small_variant_can_run_on_this_cpu(name: str) -> None:
    cells = expand(with_variant(load_study(name), "small"))
    assert len(cells) > 1
    for cell in cells:
        assert cell.spec is not None, cell.refused
        assert cell.spec.ranks > 1
        check_passes(cell.spec, cell.passes)


def test_the_ddp_study_tries_every_way_of_sharing() -> None:
    cells = expand(with_variant(load_study("ddp"), "small"))
    ways = {cell.spec.parallel for cell in cells if cell.spec is not None}
    assert ways == {"naive", "flat", "overlap", "bucketed", "ddp", "fsdp2"}


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_cell_with_more_ranks_than_gpus_is_refused_with_the_reason(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "find_cuda", lambda: devices.FoundCuda([None] * gpus))
    study = with_variant(load_study("ddp"), "small")
    for cell in expand(study, {"device": "cuda"}):
        assert (cell.spec is not None) == (gpus == 2)
        assert not cell.refused or "at most 1 here, each rank has a CUDA device" in cell.refused


def test_a_point_with_a_comma_in_its_label_can_be_chosen() -> None:
    study = load_study("all-reduce")
    chosen = {"backend": ["gloo", "CPU"], "ranks": ["2", "4"]}
    cells = expand(study, only=chosen)
    assert {(cell.point["backend"], cell.point["ranks"]) for cell in cells} == {
        ("gloo, CPU", "2"),
        ("gloo, CPU", "4"),
    }
