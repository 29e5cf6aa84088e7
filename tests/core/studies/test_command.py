"""The command that is shown for a study runs the same study."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from sysbench.core.storage import study_files
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import with_overrides, with_variant
from sysbench.core.studies.study_text import study_command
from sysbench.tui.commands.registry import parse_arguments
from sysbench.tui.commands.spec_arguments import parse_settings


@pytest.mark.parametrize("name", list(study_files()))
def test_a_profile_is_called_by_its_name(sysbench_home: Path, name: str) -> None:
    assert study_command(load_study(name)) == f"sysbench-tui study {name}"


@pytest.mark.parametrize(
    ("variant", "overrides"),
    [
        ("small", {}),
        ("", {"precision": "fp32,bf16", "batch": "2"}),
        ("small", {"threads": "2", "model": "tiny"}),
        ("small", {"memory_limit": "24GiB", "compile_fullgraph": "true"}),
        ("", {"world": "dp=16;dp=8,tp=2", "card": "a100-40gb"}),
    ],
)
def test_what_was_changed_is_in_the_command(
    sysbench_home: Path, variant: str, overrides: dict[str, str]
) -> None:
    name = "layouts" if "world" in overrides else "precision"
    study = with_overrides(with_variant(load_study(name), variant), overrides)
    arguments = parse_arguments(shlex.split(study_command(study))[1:])
    again = with_overrides(
        with_variant(load_study(arguments.name), arguments.variant),
        parse_settings(arguments.settings),
    )
    assert again.identity == study.identity
    for key in overrides.keys() & study.fixed.keys():
        assert f"{key}={overrides[key]}" in arguments.settings


def test_the_rounds_are_in_the_command(sysbench_home: Path) -> None:
    study = msgspec.structs.replace(load_study("precision"), repeat=6)
    assert study_command(study) == "sysbench-tui study precision --repeat 6"


def test_a_file_that_is_gone_still_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "x"\naxes = { context = [64] }\n[[tables]]\nname = "t"\n'
        'columns = [{ name = "ms", value = "timing.step.median_ms" }]\n'
    )
    study = load_study(path)
    path.unlink()
    assert study_command(study) == f"sysbench-tui study {shlex.quote(str(path))}"
