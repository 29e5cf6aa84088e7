"""Study files: the shipped ones are sound; each mistake is reported with file, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.errors import NotFoundError, SysbenchError
from sysbench.core.studies.file.schema import load_study, study_files
from sysbench.core.studies.report.table import WITHOUT_STEPS, fill_all
from sysbench.core.studies.run.grid import expand, with_variant

WRITE_UPS = {
    "e2e": {"warmup_steps", "benchmark_steps", "avg", "std"},
    "warmup": {"warmup_steps", "benchmark_steps", "avg", "std"},
    "kernels": {"Longest in forward", "Calls", "GEMM forward", "GEMM step", "Softmax (ms)"},
    "precision": {"model_size", "precision", "pass_type", "avg_time_ms"},
    "memory": {"context length", "forward", "full step"},
    "memory-precision": {"fp32", "bf16"},
    "residual-and-largest": {"Residual tensor (MiB)", "Largest (MiB)"},
    "attention": {"d_model", "seq_len", "Forward (ms)", "Backward (ms)", "Status"},
    "attention-compiled": {"Forward (ms)", "Compiled forward (ms)", "Speedup forward"},
    "compile": {"Metric", "Vanilla (ms)", "Compiled (ms)", "Speedup", "Speedup Train"},
    "accumulation": {"Loop", "Sum"},
    "ddp": {"Total Time (ms)", "Comm Time (ms)", "Compute Time (ms)"},
    "checkpointing": {"Blocks", "Peak (GiB)", "Forward (ms)", "Backward (ms)"},
    "flash": {"Forward (ms)", "Backward (ms)", "End to end (ms)"},
}
CONTEXT = {"hardware", "batch", "context", "precision", "attention"}

GOOD = """
title = "t"
[axes]
context = [32, 64]
step = ["inference", "train"]
[[tables]]
name = "t"
rows = ["context"]
columns = [{ name = "ms", value = "timing.step.median_ms", where = { step = "train" } }]
"""

RATIO = '{ name = "r", ratio = ["ms", "zz"] }'
LINKED = '[{ label = "a", context = 32 }, { label = "a", batch = 2 }]'

MISTAKES = {
    "no TOML": ("title = [", "is not TOML|TOML"),
    "unknown key": (GOOD.replace("title =", "titel ="), "titel"),
    "no title": (GOOD.replace('title = "t"', "", 1), "title"),
    "unknown axis key": (GOOD.replace("context = [32, 64]", "contxt = [32]"), "context"),
    "bad value": (GOOD.replace("[32, 64]", '["many"]'), "context"),
    "empty axis": (GOOD.replace("[32, 64]", "[]"), "context"),
    "unknown pass": ('passes = ["speed"]\n' + GOOD, "timing"),
    "path to nowhere": (GOOD.replace("median_ms", "medan_ms"), "median_ms"),
    "unit of something else": (GOOD.replace('", where', '", unit = "GiB", where'), "unit"),
    "bad format": (GOOD.replace('", where', '", format = "{x!r}", where'), "format"),
    "attribute in a format": (GOOD.replace('", where', '", format = "{a.b}", where'), "format"),
    "unknown point": (GOOD.replace('step = "train" } }', 'step = "fly" } }'), "inference"),
    "column without a place": (GOOD.replace(', where = { step = "train" }', ""), "where"),
    "unknown row axis": (GOOD.replace('rows = ["context"]', 'rows = ["size"]'), "rows"),
    "no table": (GOOD.split("[[tables]]")[0], "tables"),
    "fixed and axis": ("[fixed]\ncontext = 3\n" + GOOD.replace('title = "t"', ""), "context"),
    "too many repeats": ("repeat = 1000\n" + GOOD, "repeat"),
    "no axes": ("axes = {}" + GOOD.split("[axes]")[0] + GOOD[GOOD.index("[[") :], "axes"),
    "no passes": ("passes = []\n" + GOOD, "timing"),
    "text for a switch": ('timelines = "yes"\n' + GOOD, "true or false"),
    "points of one label": (GOOD.replace("[32, 64]", LINKED), "no other point"),
    "empty skip": (GOOD + "[[skip]]\n", "context, step"),
    "tables of one name": (GOOD + GOOD[GOOD.index("[[") :], "no other one"),
    "columns of one name": (
        GOOD.replace("columns = [", 'columns = [{ name = "ms", value = "spec.batch" }, '),
        "no other one",
    ),
    "text for a column": (GOOD.replace("columns = [{", 'columns = ["ms", {'), "columns"),
    "ratio of an unknown column": (GOOD.replace("} }]", f"}} }}, {RATIO}]"), "any of ms"),
    "path to a block": (GOOD.replace("step.median_ms", "step"), "median_ms"),
    "path to entries": (GOOD.replace("step.median_ms", "phases"), "entries by their name"),
    "parts of a number": (GOOD.replace('", where', '", format = "{mean}", where'), "no parts"),
    "part that a value has not": (
        GOOD.replace('step.median_ms"', 'step", format = "{men:.2f}"'),
        "mean_ms",
    ),
    "unknown table of a cell": (
        GOOD.split("[[tables]]")[0] + '[[tables]]\nname = "x"\neach = "wishes"\n',
        "each",
    ),
}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(study_files()))
def test_a_shipped_study_expands_in_full_and_small(name: str) -> None:
    study = load_study(name)
    assert expand(study)
    small = with_variant(study, "small")
    cells = expand(small)
    assert 1 <= len(cells) <= 12
    assert any(cell.spec is not None for cell in cells)
    assert study.notes


@pytest.mark.parametrize("name", WRITE_UPS)
def test_its_tables_have_the_write_ups_columns_and_those_they_forgot(name: str) -> None:
    study = with_variant(load_study(name), "small")
    tables = list(fill_all(study, expand(study), {}))
    columns = {column for table in tables for column in table.columns}
    assert columns >= WRITE_UPS[name]
    axes = {axis.name for axis in study.axes}
    has_steps = study.fixed.get("workload") not in WITHOUT_STEPS
    assert columns | axes >= ((CONTEXT - {"context"}) if has_steps else {"hardware"})
    for table in tables:
        assert len(set(table.columns)) == len(table.columns)


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_the_file_the_key_and_what_is_allowed(case: str, tmp_path: Path) -> None:
    text, words = MISTAKES[case]
    path = written(tmp_path / "mine.toml", text)
    with pytest.raises(SysbenchError, match=words) as caught:
        load_study(path)
    assert "mine.toml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("[32, 64]", '["many"]').replace("median_ms", "medan_ms")
    with pytest.raises(SysbenchError) as caught:
        load_study(written(tmp_path / "mine.toml", text))
    assert len(str(caught.value).splitlines()) >= 2


def test_one_mistake_is_told_once(tmp_path: Path) -> None:
    for case in ("ratio of an unknown column", "no axes", "points of one label", "path to a block"):
        with pytest.raises(SysbenchError) as caught:
            load_study(written(tmp_path / "mine.toml", MISTAKES[case][0]))
        assert len(str(caught.value).splitlines()) == 1


def test_an_unknown_name_tells_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match="precision"):
        load_study("presicion")


def test_a_persons_own_study_goes_before_a_shipped_one(sysbench_home: Path) -> None:
    folder = sysbench_home / "studies"
    folder.mkdir(parents=True)
    written(folder / "e2e.toml", GOOD)
    assert load_study("e2e").title == "t"
