"""Models of users in a spec: names, arguments, the digest of the code, the identity."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.model_source import libraries_of, locate
from sysbench.core.spec.own_model import source_of
from sysbench.core.spec.profiles import load_profile, resolve, save_profile
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.tui.commands.registry import parse_arguments
from sysbench.tui.commands.spec_arguments import asked_spec

CPU = {"device": "cpu"}


def refusal(values: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(values)
    return caught.value


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("nano.py:make", ("file", "nano.py", "make")),
        ("~/a:b/nano.py:Models.make", ("file", "~/a:b/nano.py", "Models.make")),
        ("package.module:make", ("module", "package.module", "make")),
        ("hf:Qwen/Qwen3-0.6B", ("hf", "Qwen/Qwen3-0.6B", "")),
    ],
)
def test_a_name_says_which_door(text: str, source: tuple[str, str, str]) -> None:
    assert tuple(source_of(text)) == source
    spec = parse_spec({"model": text})
    assert (spec.workload, spec.attention, spec.layers) == ("own-model", "own", 0)


@pytest.mark.parametrize("text", ["nano.py:", "hf:", "a b:make", "nano.py:1", ":make", "x.y:for"])
def test_what_names_no_code_is_refused(text: str) -> None:
    assert refusal({"model": text}).field == "model"


@pytest.mark.parametrize(
    ("values", "field", "allowed"),
    [
        ({"layers": 2}, "layers", "model.NAME=VALUE"),
        ({"attention": "naive"}, "attention", "its own code"),
        ({"attention": "sdpa"}, "attention", "its own code"),
        ({"checkpoint": 1}, "checkpoint", "recompute"),
        ({"ranks": 2, "parallel": "ddp", "step": "inference"}, "parallel", "is trained"),
        ({"workload": "attention"}, "model", "leave it out"),
        ({"workload": "accumulation"}, "workload", "leave it out"),
        ({"trust_code": True}, "trust_code", "your own code"),
        ({"optimizer": "custom", "step": "forward"}, "optimizer", "step = train"),
        ({"model.for": 1}, "model.for", "keyword argument"),
        ({"model_args": "[1]"}, "model_args", "JSON object"),
        ({"model_args": '{"a": NaN}'}, "model_args", "JSON object"),
        ({"model_args": '{"a": ' + "[" * 4000}, "model_args", "JSON object"),
        ({"model.width": float("nan")}, "model.width", "JSON values"),
        ({"model.width": 1, "model_args": "["}, "model.width", "JSON values"),
        ({"model": "tiny", "model.layers": 1}, "model_args", "needs model"),
        ({"model": "tiny", "attention": "own"}, "attention", "your own models"),
        ({"model": "tiny", "optimizer": "custom"}, "optimizer", "your own models"),
        ({"model": "tiny", "workload": "own-model"}, "workload", "needs model"),
        ({"model": "tiny", "context": 0}, "context", "an integer ≥ 1"),
        ({"model": "hf:x", "checkpoint": 2}, "checkpoint", "0 or 1"),
    ],
)
def test_a_key_that_the_model_cannot_honour_is_refused(
    values: dict[str, Any], field: str, allowed: str
) -> None:
    error = refusal({"model": "nano.py:make"} | values)
    assert error.field == field
    assert allowed in error.allowed


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("4", 4),
        ("NaN", "NaN"),
        ("0.5", 0.5),
        ("true", True),
        ("relu", "relu"),
        ("[1, 2]", [1, 2]),
        ('"4"', "4"),
    ],
)
def test_an_argument_survives_the_command_line_and_a_profile(
    value: str, read: object, tmp_path: Path, sysbench_home: Path
) -> None:
    spec = parse_spec({"model": "nano.py:make", "model.size": value, "model.deep": True})
    assert json.loads(spec.model_args) == {"deep": True, "size": read}
    assert asked_spec(parse_arguments(shlex.split(command_line(spec))[1:])) == spec
    save_profile("mine", spec)
    assert load_profile("mine")[0] == spec


def code(folder: Path, text: str = "import json\nfrom parts import Block\n") -> Path:
    folder.mkdir()
    (folder / "parts.py").write_text("Block = 1\n")
    (folder / "unrelated.py").write_text("Other = 1\n")
    (folder / "nano.py").write_text(text + "def make(): ...\n")
    return folder / "nano.py"


def test_the_identity_is_of_the_code_and_not_of_its_place(tmp_path: Path) -> None:
    here, there = code(tmp_path / "here"), code(tmp_path / "there")
    first = resolve(parse_spec({"model": f"{here}:make", **CPU}))
    assert (first.model, first.model_file) == ("nano.py:make", str(here))
    assert resolve(parse_spec({"model": f"{there}:make", **CPU})).identity == first.identity
    assert RunSpec(**{name: getattr(first, name) for name in first.__struct_fields__}) == first
    assert parse_spec(first.settings()).model == f"{here}:make"

    (here.parent / "unrelated.py").write_text("Other = 2\n")
    assert locate(first).identity == first.identity
    (here.parent / "parts.py").write_text("Block = 2\n")
    assert locate(first).identity != first.identity


def test_the_versions_of_imported_libraries_are_part_of_the_digest(tmp_path: Path) -> None:
    plain = resolve(parse_spec({"model": f"{code(tmp_path / 'a')}:make", **CPU}))
    path = code(tmp_path / "b", "import msgspec, torch\nfrom parts import Block\n")
    other = resolve(parse_spec({"model": f"{path}:make", **CPU}))
    assert set(libraries_of(source_of("nano.py:make"), path)) == {"msgspec", "torch"}
    assert other.model_source != plain.model_source


def test_a_module_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "mine"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError\n")
    (package / "deep" / "__init__.py").write_text("raise RuntimeError\n")
    (package / "deep" / "nano.py").write_text("from ..base import x\n")
    (package / "base.py").write_text("x = 1\n")
    spec = resolve(parse_spec({"model": "mine.deep.nano:make", **CPU}))
    assert spec.model_file == str(package / "deep" / "nano.py")
    (package / "base.py").write_text("x = 2\n")
    assert locate(spec).identity != spec.identity


def test_a_configuration_is_found_in_the_cache_and_never_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "transformers.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    spec = parse_spec({"model": "hf:org/name", **CPU})
    with pytest.raises(SpecError, match="nothing is downloaded"):
        resolve(spec)
    folder = tmp_path / "models--org--name"
    for revision in ("aa", "bb"):
        (folder / "snapshots" / revision).mkdir(parents=True)
        (folder / "snapshots" / revision / "config.json").write_text(f'{{"r": "{revision}"}}')
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("bb\n")
    found = resolve(spec)
    assert (found.model, Path(found.model_file).parent.name) == ("hf:org/name", "bb")


def test_a_missing_library_is_reported_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "needs.py"
    body = "import json, beside, folder.part, {}\ntry: import optional\nexcept ImportError: ...\n"
    file.write_text(body.format("torch"))
    (tmp_path / "beside.py").write_text("import of_another_file\n")
    (tmp_path / "folder").mkdir()
    spec = parse_spec({"model": f"{file}:make", **CPU})
    assert locate(spec).model_source
    file.write_text(body.format("no_such_library"))
    with pytest.raises(SpecError) as caught:
        locate(spec)
    assert caught.value.field == "model"
    assert "it imports no_such_library, which" in str(caught.value)
    assert "pip install" not in str(caught.value)  # nobody knows what that would install
    site = tmp_path / "bin"
    site.mkdir()
    python = site / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    file.write_text("import PIL\n")
    with pytest.raises(SpecError, match=r"ensurepip.*-m pip install pillow|pip install.*pillow"):
        locate(spec, str(python))


@pytest.mark.parametrize("model", ["none.py:make", "no_such_package.x:make", "hf:no/such"])
def test_code_that_is_not_there_is_a_bad_spec(model: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no|nothing is downloaded"):
        resolve(parse_spec({"model": model, **CPU}))


def test_a_spec_changes_between_a_preset_and_a_model_of_the_user_s() -> None:
    own = parse_spec({"model": "nano.py:make", "model.layers": 2, "batch": 8})
    assert own.changed(model="tiny") == RunSpec(batch=8)
    assert RunSpec(batch=8).changed(model="nano.py:make", model_args='{"layers": 2}') == own
    assert own.changed(batch=4).batch == 4
