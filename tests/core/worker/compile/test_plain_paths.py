"""Folders with blanks: torch's compiler takes them by a second path, or the run says why not."""

from __future__ import annotations

import importlib.machinery
import os
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sysbench.core.errors import WorkerFailed
from sysbench.core.record import events
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile import plain_paths
from sysbench.core.worker.compile.plain_paths import (
    CACHE_VARIABLE,
    have_plain_paths,
    plain,
    use_plain_paths,
)

AWKWARD = ["with blanks", "it's", 'two "words"', "back\\slash", "tab\t", " led"]


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where links are made; not in the test's folder, whose own path may have a blank."""
    sysconfig.get_config_vars()  # read before a test changes the import path
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(plain_paths, "PLACES", (place,))
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield Path(place, f"sysbench-tui-{os.getuid()}")


@pytest.mark.parametrize("name", AWKWARD)
def test_any_folder_has_a_path_that_is_one_word(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "runs" / name / "cache"
    folder.mkdir(parents=True)
    found = plain(folder)
    assert shlex.split(f"g++ -L{found} -c {found}/x.cpp") == [
        "g++",
        f"-L{found}",
        "-c",
        f"{found}/x.cpp",
    ]
    assert found.samefile(folder)
    assert plain(folder) == found, "code is cached by the command, so the path must stay"


@pytest.mark.parametrize("name", ["plain", "größer", "~", "a(b)&c"])
def test_a_path_that_is_one_word_stays(name: str) -> None:
    assert plain(Path("/", name, "cache")) == Path("/", name, "cache")


def test_torch_python_and_the_cache_are_found_by_plain_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my programs"
    site = home / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    (home / "include").mkdir()
    before, beside = "/before with blanks", "/after with blanks"
    monkeypatch.setattr(sys, "path", [before, str(site), beside])
    monkeypatch.setenv(CACHE_VARIABLE, str(home / "cache"))
    monkeypatch.setitem(sysconfig.get_config_vars(), "installed_base", str(home))
    use_plain_paths()
    torch = importlib.machinery.PathFinder.find_spec("torch", sys.path)
    assert torch is not None and torch.origin is not None
    headers = Path(sysconfig.get_path("include"))
    for path in (torch.origin, os.environ[CACHE_VARIABLE], str(headers)):
        assert shlex.split(path) == [path]
    assert Path(torch.origin).samefile(site / "torch" / "__init__.py")
    assert Path(os.environ[CACHE_VARIABLE]).samefile(home / "cache")
    assert headers.parent.samefile(home / "include")
    assert [sys.path[0], sys.path[2]] == [before, beside], "nothing else is imported otherwise"


def test_the_default_cache_is_in_a_plain_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small tmp"
    small.mkdir()
    monkeypatch.setenv("TMPDIR", str(small))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    use_plain_paths()
    found = tempfile.gettempdir()
    assert found == os.environ["TMPDIR"]
    assert shlex.split(found) == [found] and Path(found).samefile(small)


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_links_that_others_could_have_made_are_not_followed(
    tmp_path: Path, links: Path, mode: int
) -> None:
    links.mkdir()
    links.chmod(mode)
    with pytest.raises(WorkerFailed, match=r"torch cannot compile in .*with blanks"):
        plain(tmp_path / "with blanks")
    links.rmdir()
    links.symlink_to(tmp_path)
    with pytest.raises(WorkerFailed, match=r"torch cannot compile in .*with blanks"):
        plain(tmp_path / "with blanks")


def test_only_a_run_that_compiles_needs_them(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links.touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "with blanks"))
    reported: list[events.AnyEvent] = []
    eager = Job(spec=RunSpec(device="cpu"), name="timing", folder=str(tmp_path))
    assert have_plain_paths(eager, reported.append) and not reported
    compiled = Job(spec=eager.spec.changed(compile="default"), name="timing", folder=str(tmp_path))
    assert not have_plain_paths(compiled, reported.append)
    (event,) = reported
    assert isinstance(event, events.WorkerFailed)
    assert "with blanks" in event.message and "move it" in event.message
