"""Builds what is published, installs it into empty environments without a network, and uses it.

``python -m tests.validation.distribution`` needs git, setuptools and the dependencies of this
environment, which the new ones see by a ``.pth`` file: torch is not copied. It ends with 1 at the
first step that fails. uv and pipx are tried where they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN_TESTS = (
    "tests/core/spec",
    "tests/core/record",
    "tests/test_packaging.py",
    "tests/test_docs.py",
)
"""The tests that the source distribution runs of itself: no worker is started."""
BUILD_WHEEL = (
    "import sys; folder = sys.argv[1]; from setuptools import build_meta as backend;"
    "backend.build_wheel(folder)"
)
BUILD = f"{BUILD_WHEEL}; backend.build_sdist(folder)"
USES = (
    ("--version",),
    ("estimate", "tiny", "context=512"),
    ("run", "tiny", "steps=5", "threads=1", "--passes", "timing"),
    ("show", "last", "--section", "timing"),
    ("export", "last", "html"),
)
"""What an installed program has to do, in an empty folder with an empty home."""


def done(*words: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command that has to end with 0; without it, its words and this program's end.

    Raises:
        SystemExit: It did not.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**kept, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{result.stdout}{result.stderr}")
    return result.stdout


def environment_in(folder: Path) -> Path:
    """The Python of an empty environment: it sees the dependencies of this one, not the program."""
    done(sys.executable, "-m", "venv", folder, cwd=ROOT)
    python = folder / "bin" / "python"
    site = done(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=ROOT)
    theirs = Path(sysconfig.get_paths()["purelib"])
    seen = folder / "dependencies"
    seen.mkdir()
    for entry in theirs.iterdir():
        # An editable installation of this program would hide a file that the wheel lacks.
        if "sysbench" not in entry.name and entry.name not in ("pip", "_virtualenv.pth"):
            (seen / entry.name).symlink_to(entry)
    (Path(site.strip()) / "dependencies.pth").write_text(f"{seen}\n")
    return python


def use(program: Path, folder: Path) -> None:
    """Do what a user does first."""
    desk = folder / "desk"
    desk.mkdir()
    for words in USES:
        said = done(program, *words, cwd=desk, SYSBENCH_HOME=str(folder / "home"))
        print(f"  {' '.join(words)}: {len(said):,} characters")


def main() -> None:
    """Build, install, use, and let the source distribution test itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, dist = folder / "source", folder / "dist"
        for path in done("git", "ls-files", "-z", cwd=ROOT).split("\0"):
            if path and (ROOT / path).is_file():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, source / path, follow_symlinks=False)
        dist.mkdir()
        began = time.perf_counter()
        done(sys.executable, "-c", BUILD, dist, cwd=source)
        (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
        print(f"built in {time.perf_counter() - began:.0f} s")
        for built in (sdist, wheel):
            print(f"  {built.name}: {built.stat().st_size / 1e6:.1f} MB")

        python = environment_in(folder / "by-pip")
        done(python, "-m", "pip", "install", "--no-deps", wheel, cwd=folder)
        print("the wheel, by pip:")
        use(python.with_name("sysbench-tui"), folder / "by-pip")

        if uv := shutil.which("uv"):
            python = environment_in(folder / "by-uv")
            done(
                uv,
                "pip",
                "install",
                "--offline",
                "--no-deps",
                "--python",
                python,
                wheel,
                cwd=folder,
            )
            print("the wheel, by uv:")
            use(python.with_name("sysbench-tui"), folder / "by-uv")
        else:
            print("uv is not here")

        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        unpacked = folder / sdist.name.removesuffix(".tar.gz")
        again = folder / "again"
        again.mkdir()
        done(sys.executable, "-c", BUILD_WHEEL, again, cwd=unpacked)
        python = environment_in(folder / "of-source")
        done(python, "-m", "pip", "install", "--no-deps", *again.iterdir(), cwd=folder)
        tests = done(
            python, "-P", "-m", "pytest", "-q", *OWN_TESTS, cwd=unpacked, OMP_NUM_THREADS="1"
        )
        print(f"the source's own tests: {tests.splitlines()[-1]}")


if __name__ == "__main__":
    main()
