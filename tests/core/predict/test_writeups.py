"""The write-ups' memory figures, by the closed forms of their own code."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.spec.spec import RunSpec
from tests.core.predict.writeups import Resident, writeup_peak_bytes, writeup_saved_bytes

GIB, GB = 2**30, 10**9

# Saved bytes in GiB at batch 4, contexts 128, 256, 512, 1024.
SAVED: dict[str, tuple[float, ...]] = {
    "cs336-2025/small": (0.64, 1.42, 3.40, 9.06),
    "cs336-2025/medium": (1.64, 3.65, 8.80, 23.6),
    "cs336-2025/large": (3.03, 6.77, 16.35, 43.96),
    "cs336-2025/xl": (5.03, 11.2, 27.1, 73.0),
    "cs336-2025/2.7B": (5.24, 11.5, 27.0, 69.9),
    "cs336-2026/10B": (11.2, 24.2, 55.3, 139),
}

# Of 2.7B, float32 or bf16 autocast, batch 4: what was resident, the unit, and context to what
# was reported: every figure of the cell with five answers, and of the other steps.
REPORTED: list[tuple[str, Resident, int, dict[int, float]]] = [
    ("S1", "3P+A", GB, {128: 46, 256: 53, 512: 70}),
    ("Da", "P+t", GIB, {128: 12.90, 256: 13.00, 512: 13.42}),
    ("Da, bf16", "P+C+t", GIB, {128: 19.18, 256: 19.24, 512: 19.38}),
    ("Da, training", "max(4P, P+A)", GIB, {128: 51.39, 256: 51.39, 512: 51.38}),
    ("En", "P+A", GIB, {128: 18.05, 512: 39.75}),
    ("En, training", "max(4P, 3P+A)", GIB, {128: 51.42, 512: 65.54}),
    ("Kb", "P+A", GB, {128: 19.3, 256: 26.0, 512: 42.8}),
    ("Br", "P+2A", GIB, {128: 23.1, 256: 35.5, 512: 65.1}),
]
EXCEPTIONS = {("Br", 512): 0.025}
"""The published closed form also gives 66.6 GiB; the cause of the difference is not published."""


@pytest.mark.parametrize("model", SAVED)
def test_saved_bytes_are_those_of_the_published_closed_form(model: str) -> None:
    for context, gib in zip((128, 256, 512, 1024), SAVED[model], strict=True):
        spec = RunSpec(model=model, context=context)
        assert writeup_saved_bytes(spec) / GIB == pytest.approx(gib, rel=0.005, abs=0.005)


@pytest.mark.parametrize(
    ("resident", "unit", "figures"),
    [
        ("P+A", GIB, (17.93, 24.17, 39.65)),
        ("P+A", GB, (19.25, 25.95, 42.58)),
        ("P+2A", GIB, (23.2, 35.6, 66.6)),
        ("3P+A", GB, (46.5, 53.2, 69.8)),
        ("P", GIB, (12.69, 12.69, 12.69)),
        ("max(4P, 3P+A)", GIB, (50.77, 50.77, 65.0)),
    ],
)
def test_peaks_are_those_of_the_published_closed_form(
    resident: Resident, unit: int, figures: tuple[float, ...]
) -> None:
    for context, figure in zip((128, 256, 512), figures, strict=True):
        peak = writeup_peak_bytes(RunSpec(model="2.7B", context=context), resident)
        assert peak / unit == pytest.approx(figure, rel=0.002)


@pytest.mark.parametrize(("source", "resident", "unit", "figures"), REPORTED)
def test_reported_peaks_are_explained_by_what_was_resident(
    source: str, resident: Resident, unit: int, figures: dict[int, float]
) -> None:
    for context, figure in figures.items():
        peak = writeup_peak_bytes(RunSpec(model="2.7B", context=context), resident)
        within = EXCEPTIONS.get((source, context), 0.02)
        assert peak / unit == pytest.approx(figure, rel=within), source


def test_an_unknown_resident_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"resident = '2P': one of P; P\+t; "):
        writeup_peak_bytes(RunSpec(), cast(Any, "2P"))
