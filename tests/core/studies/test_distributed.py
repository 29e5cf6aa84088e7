"""The studies of several ranks: their small variants can run on any machine."""

from __future__ import annotations

import pytest

from sysbench.core.spec.passes import check_passes
from sysbench.core.studies.file.schema import load_study
from sysbench.core.studies.run.grid import expand, with_variant


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
