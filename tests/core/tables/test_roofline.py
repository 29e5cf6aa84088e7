from __future__ import annotations

import msgspec
import pytest

from sysbench.core.record.environment import Roof
from sysbench.core.record.record import Kernels, Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.cells import cells_as_text
from sysbench.core.tables.kernel_tables import flops_table, roof_words, roofline_table
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.trace.roofline import with_roof
from tests.factories import table_named

ROOF = Roof(
    precision="fp32",
    peak_flops=80e9,
    peak_source="by hand",
    bandwidth=20e9,
    bandwidth_source="a guess",
)


@pytest.fixture(scope="module")
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


@pytest.fixture(scope="module")
def kernels(record: Record) -> Kernels:
    assert record.kernels is not None
    return record.kernels


def test_the_roofline_table_says_its_roof_or_why_none(kernels: Kernels) -> None:
    assert "80 GFLOP/s fp32 (by hand), 20 GB/s (a guess), ridge at 4 FLOP/byte" in (
        roofline_table(with_roof(kernels, ROOF)).title
    )
    assert "no roof: no peak is known for a CPU" in roofline_table(kernels).title
    assert "bandwidth not known" in roof_words(msgspec.structs.replace(ROOF, bandwidth=None))


def test_rates_in_the_table_follow_from_its_amounts(kernels: Kernels) -> None:
    table = roofline_table(with_roof(kernels, ROOF))
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        ns, flops, moved = (cells[key] for key in ("total_ns", "flops", "moved_bytes"))
        assert isinstance(ns, float) and isinstance(flops, float) and isinstance(moved, float)
        assert cells["tflops"] == pytest.approx(flops / ns * 1e9 / 1e12)
        assert cells["gigabytes_per_second"] == pytest.approx(moved / ns)
        assert cells["intensity"] == pytest.approx(flops / moved)
        assert cells["bound"] in ("compute", "memory")
    assert all(len(row) == len(table.columns) for row in cells_as_text(table))


def test_counted_flops_stand_beside_the_closed_form_in_both_conventions(record: Record) -> None:
    table = flops_table(record)
    assert table.column("phase") == ["forward", "backward", "step"]
    assert table.column("over_model") == pytest.approx([1.0, 1.0, 1.0])
    full, causal = table.column("model_flops"), table.column("causal_model_flops")
    spec = record.spec
    masked = 2 * spec["batch"] * spec["context"] ** 2 * spec["d_model"] * spec["layers"]
    differences = [float(a or 0) - float(b or 0) for a, b in zip(full, causal, strict=True)]
    assert differences == [masked, 2 * masked, 3 * masked]
    assert "4BT²dL" in table.title


def test_both_are_among_the_tables_of_a_record(record: Record) -> None:
    assert table_named(record, "roofline").rows
    assert table_named(record, "flops").rows
    without = msgspec.structs.replace(record, kernels=None)
    assert not {"roofline", "flops"} & {table.name for table in tables_of(without)}
    assert flops_table(without).rows == ()
