"""Saved specs, and spec files from anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import NotFoundError, ProfileError, SpecError
from sysbench.core.spec.profiles import list_profiles, load_profile, read_spec_file, save_profile
from sysbench.core.spec.spec import RunSpec


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(tmp_path))


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(),
        RunSpec(model="cs336-2025/2.7B", precision="bf16", clip=1.0, compile="default"),
        RunSpec(vocab=64, d_model=32, d_ff=64, layers=1, heads=2, compile_fullgraph=True),
        RunSpec(device="cpu", warmup=0, steps=7, memory_limit=2**30),
    ],
)
def test_a_saved_profile_comes_back_equal(spec: RunSpec) -> None:
    save_profile("mine", spec, ["timing", "memory"])
    assert load_profile("mine") == (spec, ["timing", "memory"])
    assert list_profiles() == ["mine"]


def test_the_error_of_an_absent_profile_lists_the_existing_ones() -> None:
    save_profile("mine", RunSpec())
    with pytest.raises(NotFoundError, match="mine"):
        load_profile("yours")


@pytest.mark.parametrize("name", ["", "../evil", "a/b", ".hidden", "x" * 65, "a b", "a\n"])
def test_names_that_would_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(SpecError):
        save_profile(name, RunSpec())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch = -1", "batch = -1"),
        ("modle = 'tiny'", "did you mean 'model'"),
        ("batch = [1, 2]", "batch = [1, 2]"),
        ("batch = { a = 1 }", "batch"),
        ("batch = 1979-05-27", "batch"),
        ("passes = ['sing']", "passes = 'sing'"),
        ("passes = 'timing'", "a list of"),
        ("passes = []", "passes"),
        ("batch = \n", "line 1"),
        ("[spec]\nbatch = 1", "spec"),
        ("batch = 1\nbatch = 2\n", "line 2"),
        ("until = nan", "until = nan"),
        ("batch = 99999999999999999999999", "batch"),
        ("x = " + "[" * 5000 + "]" * 5000, "not TOML"),
    ],
)
def test_a_bad_file_is_one_message_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_spec_file(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 or "line" in said


def test_absent_binary_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_spec_file(tmp_path / "absent.toml")
    with pytest.raises(ProfileError):
        read_spec_file(tmp_path)
    path = tmp_path / "spec.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="UTF-8"):
        read_spec_file(path)
    path.write_bytes(b"#" * (2**18 + 1))
    with pytest.raises(ProfileError, match="256 KiB"):
        read_spec_file(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_settings_or_a_profile_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "spec.toml"
    path.write_bytes(data)
    try:
        settings, _ = read_spec_file(path)
    except ProfileError as error:
        assert str(path) in str(error)
    else:
        assert isinstance(settings, dict)
