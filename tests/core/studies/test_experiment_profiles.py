"""The shipped studies of single experiments: they load, and their small variants run here."""

from __future__ import annotations

import pytest

from sysbench.core.spec.passes import check_passes
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import expand, with_variant

NAMES = ("accumulation", "autocast-dtypes", "checkpointing", "flash", "decode", "prefill")


@pytest.mark.parametrize("name", NAMES)
def test_every_small_cell_can_be_measured_on_the_cpu(name: str) -> None:
    cells = expand(with_variant(load_study(name), "small"), {"device": "cpu"})
    for cell in cells:
        assert cell.spec is not None, cell.refused
        check_passes(cell.spec, cell.passes)


def test_checkpointing_has_the_handout_s_model_and_a_plain_step_to_compare_with() -> None:
    study = load_study("checkpointing")
    specs = [RunSpec(**study.fixed, **point.settings) for point in study.axes[0].points]
    assert [spec.checkpoint for spec in specs] == [0, 1, 2, 4, 8]
    assert {(spec.model, spec.batch, spec.context) for spec in specs} == {
        ("cs336-2026/xl", 4, 2048)
    }


def test_flash_has_the_handout_s_grid() -> None:
    axes = {axis.name: axis.labels for axis in load_study("flash").axes}
    assert axes["context"] == tuple(str(2**power) for power in range(7, 17))
    assert axes["d_model"] == ("16", "32", "64", "128")
    assert set(axes["precision"]) == {"bf16-pure", "fp32"}
    assert {"naive", "flash", "flex"} <= set(axes["kernel"])
