"""Measured rates: against the data sheet, an earlier day, and the sisters in the box."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.record.device_rates import DeviceRates, Load
from sysbench.core.runs.kept_rates import rates_report, sentences

H100 = "NVIDIA H100 80GB HBM3"
PRODUCTS = [610e12, 611e12, 609e12, 612e12, 608e12, 610.5e12]
COPIES = [2.91e12, 2.92e12, 2.9e12, 2.93e12, 2.89e12, 2.915e12]


def rates(
    device: str = "cuda:0",
    *,
    scale: float = 1.0,
    name: str = H100,
    load: Load | None = None,
) -> DeviceRates:
    rounds = [
        {"product bf16": product * scale, "memory copy": copy, "launch": 4e-6}
        for product, copy in zip(PRODUCTS, COPIES, strict=True)
    ]
    return DeviceRates(
        key=device,
        device=device,
        name=name,
        taken_ns=0,
        torch="2.13.0",
        threads=8,
        rounds=rounds,
        work={"product bf16": "8192 × 8192 × 8192"},
        load=load,
    )


def test_each_rate_stands_beside_the_vendor_s_figure() -> None:
    report = rates_report(rates(), before=None, sisters=[])
    rows = {row.name: row for row in report.rows}
    assert list(rows) == ["product bf16", "memory copy", "launch"]
    assert rows["product bf16"].quoted == pytest.approx(989.4e12)
    assert rows["product bf16"].of_quoted == pytest.approx(610.25 / 989.4)
    assert rows["memory copy"].of_quoted == pytest.approx(2.9125 / 3.35, rel=1e-3)
    assert rows["launch"].quoted is None
    assert not sentences(report)


def test_a_device_that_is_not_listed_has_no_figure_beside_it() -> None:
    report = rates_report(rates(name="Some CPU"), before=None, sisters=[])
    assert all(row.quoted is None for row in report.rows)


def test_a_capped_sister_is_slower_and_the_cause_is_named() -> None:
    capped = rates(
        "cuda:1",
        scale=1 / 1.14,
        load=Load(power_limit_watts=450, sm_clock_mhz=1410, reasons=["power cap"], samples=9),
    )
    free = rates(load=Load(power_limit_watts=700, sm_clock_mhz=1725, samples=9))
    (sentence,) = sentences(rates_report(capped, before=None, sisters=[free]))
    assert sentence.startswith("product bf16: slower than cuda:0 by 14 %")
    assert "capped at 450 W, cuda:0 at 700 W" in sentence
    assert "its clock was limited by: power cap" in sentence
    (other,) = sentences(rates_report(free, before=None, sisters=[capped]))
    assert other.startswith("product bf16: faster than cuda:1 by 12.3 %")


def test_a_difference_that_the_processes_do_not_support_is_not_reported() -> None:
    alike = rates_report(
        rates(), before=rates(scale=1.0005), sisters=[rates("cuda:1", scale=0.999)]
    )
    assert [row.verdict.verdict for row in (*alike.past, *alike.sisters)] == ["same"] * 4
    assert sentences(alike) == []


@given(st.integers(1, 3), st.floats(0.5, 2.0))
def test_few_processes_decide_nothing(count: int, scale: float) -> None:
    sides = [rates(), rates("cuda:1", scale=scale)]
    few = [
        DeviceRates(**{name: getattr(side, name) for name in side.__struct_fields__
                       if name != "rounds"}, rounds=side.rounds[:count])
        for side in sides
    ]  # fmt: skip
    assert sentences(rates_report(few[1], before=None, sisters=[few[0]])) == []


def test_a_device_slower_than_on_an_earlier_day_says_so() -> None:
    (sentence,) = sentences(rates_report(rates(scale=0.9), before=rates(), sisters=[]))
    assert sentence.startswith("product bf16: slower than in its last measurement by 11.1 %")
