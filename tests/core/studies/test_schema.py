"""Study files: the shipped ones are sound; each mistake is reported with file, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.errors import NotFoundError, SysbenchError
from sysbench.core.storage import study_files
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import expand, with_variant
from sysbench.core.studies.study_table import WITHOUT_STEPS, fillings

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
    "fixed and axis": (GOOD + "[fixed]\ncontext = 3\n", "no axis sets"),
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
    "path to a block": (GOOD.replace("timing.step.median_ms", "timing"), "tokens_per_second"),
    "path to entries": (GOOD.replace("step.median_ms", "phases"), "entries by their name"),
    "named field in a format": (GOOD.replace('", where', '", format = "{mean}", where'), "digits"),
    "arithmetic": (GOOD.replace("step.median_ms", "step.std_ms / timing.step.mean_ms"), "measures"),
    "arithmetic without spaces": (GOOD.replace("step.median_ms", "step.a/b"), "has no 'a/b'"),
    "ratio of a ratio": (
        GOOD.replace(
            "} }]",
            '} }, { name = "r", ratio = ["ms", "ms"] }, { name = "rr", ratio = ["r", "ms"] }]',
        ),
        "any of ms",
    ),
    "axes of no kind": (GOOD.replace("[axes]", "[[axes]]"), "axes"),
    "a number for axes": ("axes = 5\n" + GOOD.replace("[axes]", "[fixed]"), "axes = 5: a table"),
    "a number for tables": ("tables = 5\n" + GOOD.split("[[tables]]")[0], "tables = 5: a list"),
    "variant of too many repeats": (
        GOOD + "[variants.small]\nrepeat = 1000\n",
        "variants.small.repeat = 1000",
    ),
    "variant of unknown keys": (GOOD + "[variants.small]\nrepeats = 3\n", "did you mean 'repeat'"),
    "variant of an unknown axis": (GOOD + "[variants.small.axes]\nbatch = [1]\n", "context, step"),
    "number for a variant": (GOOD + "[variants]\nsmall = 3\n", "variants.small = 3"),
    "list of lists": (GOOD.replace("[32, 64]", "[[32], 64]"), "axes.context"),
    "unit in a list": (GOOD.replace('", where', '", unit = ["s"], where'), "columns.1..unit"),
    "number for a text": (GOOD.replace('title = "t"', "title = 3"), "title = 3: a text"),
    "mistyped key of a column": (GOOD.replace("value =", "vlaue ="), "did you mean 'value'"),
    "range without an end": (
        GOOD.replace("[32, 64]", "{ from = 1, times = 2 }"),
        "axes.context.to",
    ),
    "range of two kinds": (
        GOOD.replace("[32, 64]", "{ from = 1, to = 4, times = 2, step = 1 }"),
        "axes.context",
    ),
    "world without a size": (
        GOOD.replace("context = [32, 64]", 'world = ["dp"]').replace('["context"]', '["world"]'),
        "axes.world = 'dp': keys with a value each",
    ),
    "world that is none": (GOOD + '[fixed]\nworld = "dp=2,ep=3"\n', "fixed.world.ep = 3"),
    "unknown card": (GOOD + '[fixed]\ncard = "h1000"\n', "fixed.card = 'h1000'"),
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
    tables = [filling.table for filling in fillings(study, expand(study), {})]
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


def test_the_place_of_a_mistake_counts_from_one(tmp_path: Path) -> None:
    with pytest.raises(SysbenchError) as caught:
        load_study(written(tmp_path / "mine.toml", GOOD.replace("median_ms", "medan_ms")))
    text = str(caught.value)
    assert "mine.toml: tables[1].columns[1].value = 'timing.step.medan_ms'" in text
    assert "did you mean 'median_ms'" in text
    assert len(text.splitlines()) == 1


def test_points_may_be_written_as_numbers(tmp_path: Path) -> None:
    text = GOOD.replace('{ step = "train" }', '{ step = "train", context = 64 }')
    study = load_study(written(tmp_path / "mine.toml", text))
    assert study.tables[0].columns[0].where == {"step": "train", "context": "64"}


def test_a_range_ends_at_its_end(tmp_path: Path) -> None:
    for written_range, labels in {
        "{ from = 8, to = 70, times = 2 }": ("8", "16", "32", "64"),
        "{ from = 1, to = 7, step = 3 }": ("1", "4", "7"),
    }.items():
        study = load_study(written(tmp_path / "mine.toml", GOOD.replace("[32, 64]", written_range)))
        assert study.axes[0].labels == labels


def test_an_unknown_name_tells_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match="precision"):
        load_study("presicion")


def test_a_persons_own_study_goes_before_a_shipped_one(sysbench_home: Path) -> None:
    folder = sysbench_home / "studies"
    folder.mkdir(parents=True)
    written(folder / "e2e.toml", GOOD)
    assert load_study("e2e").title == "t"
