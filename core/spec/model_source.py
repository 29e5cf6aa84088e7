"""Find the code behind the name of a user's model: its file, and a digest of its contents."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from sysbench.core.errors import SpecError
from sysbench.core.machine.interpreter import (
    NEEDED,
    OPTION,
    chosen_python,
    install_command,
    missing_libraries,
    probe_python,
)
from sysbench.core.spec.own_model import ModelSource, names_code, source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import text_of

CONFIG = "config.json"
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed libraries."""
MAX_FILES = 500
"""Files that a digest may read; more cannot belong to a model."""
MAX_BYTES = 2**24

DISTRIBUTIONS = {
    **{name: name for name in ("transformers", "torchvision", "torchaudio", "timm", "einops")},
    **{name: name for name in ("peft", "accelerate", "scipy", "pandas", "omegaconf")},
    **{"flash_attn": "flash-attn", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "PyYAML"},
}
"""Packages by import name: messages suggest only these for installation."""

MEASURED_APART = {"torch"}
"""Libraries with their own entry in a record's environment, as a factor of comparisons."""


def locate(spec: RunSpec, python: str | None = None) -> RunSpec:
    """Return the spec with the file of the user's model and the digest of its code.

    Specs of other models are unchanged. The name in ``model`` loses its folder, so that the same
    code has the same identity anywhere.

    Args:
        python: Interpreter that will import it; empty for this one (default: the chosen one).

    Raises:
        SpecError: There is no such file, module or configuration, or no such interpreter.
    """
    if not spec.is_own:
        return spec
    source = source_of(spec.model)
    python = chosen_python() if python is None else python
    is_shipped = not names_code(spec.model)  # where another installation has it does not matter
    path = _path_of(source, python) if is_shipped or not spec.model_file else Path(spec.model_file)
    if not path.is_file():
        raise SpecError("model", spec.model, f"there is no file {path}")
    _check_libraries(spec.model, source, path, python)
    digest = digest_of(source, path, python)
    name = spec.model if is_shipped else _short_name(source, path)
    return spec.changed(model=name, model_file=str(path), model_source=digest)


def digest_of(source: ModelSource, path: Path, python: str = "") -> str:
    """Return a SHA-256, in 16 digits, of the code and of the versions of the imported libraries.

    Of a factory's file it covers its own text and the modules from its folder that it imports; of a
    configuration its text and any code of its own. torch is excluded: the environment of a record
    has its version.

    Raises:
        SpecError: The files cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for name, data in sorted(_texts(source, path).items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
    except OSError as error:
        raise SpecError("model", str(path), f"it cannot be read: {error.strerror}") from error
    for name, version in sorted(libraries_of(source, path, python).items()):
        if name not in MEASURED_APART:
            digest.update(f"{name} {version}\0".encode())
    return digest.hexdigest()[:16]


def libraries_of(source: ModelSource, path: Path, python: str = "") -> dict[str, str]:
    """Return the versions of the installed libraries that the code imports, by import name."""
    names = _imported_libraries(source, path)
    if python:
        return probe_python(python, sorted(names)).libraries
    versions = {name: _version(name) for name in names}
    return {name: version for name, version in versions.items() if version}


def _imported_libraries(source: ModelSource, path: Path) -> set[str]:
    if source.door == "hf":
        names = {"transformers"}
    else:
        local = _local_files(source, path)
        imported = {
            name.partition(".")[0] for file in local for name, level in _imports(file) if not level
        }
        names = imported - {file.stem for file in local} - set(sys.stdlib_module_names)
        names -= {source.top_package} if source.door == "module" else set()
        names |= {source.top_package} if _is_installed(path) else set()
    names.discard("")
    return names


def _check_libraries(model: str, source: ModelSource, path: Path, python: str) -> None:
    """Reject code that cannot be imported, before a worker starts.

    Only unconditional imports at the top level of a factory's file are checked.

    Raises:
        SpecError: Its interpreter lacks a library; the message has the install command.
    """
    names = _imported_libraries(source, path)
    missing = set(missing_libraries(python, sorted(names))) - NEEDED.keys()
    if source.door != "hf":
        root = root_of(source, path)
        missing &= {name for name in _required_imports(path) if not (root / name).is_dir()}
    if not missing:
        return
    mend = "install the package that contains it"
    if missing <= DISTRIBUTIONS.keys():
        packages = sorted(DISTRIBUTIONS[name] for name in missing)
        mend = f"run `{install_command(python, packages)}` to fix this"
    listed = ", ".join(sorted(missing))
    raise SpecError(
        "model",
        model,
        f"it imports {listed}, which {python or sys.executable} does not find: {mend}; "
        f"{OPTION} PATH names another Python",
    )


def _required_imports(path: Path) -> set[str]:
    nodes = _parsed(path).body
    imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    return {
        name.partition(".")[0]
        for node in imports
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""] * (not node.level)
        )
    }


def root_of(source: ModelSource, path: Path) -> Path:
    if source.door != "module":
        return path.parent
    is_package = path.name == "__init__.py"
    return path.parents[source.place.count(".") + is_package]


def _path_of(source: ModelSource, python: str) -> Path:
    if source.door == "file":
        return Path(source.place).expanduser().resolve()
    if source.door == "module":
        return _path_of_module(source, probe_python(python).search_path if python else sys.path)
    return _path_of_config(source.place)


def _short_name(source: ModelSource, path: Path) -> str:
    if source.door == "file":
        return f"{path.name}:{source.factory}"
    if source.door == "module":
        return f"{source.place}:{source.factory}"
    if Path(source.place).expanduser().exists():
        return f"hf:{path.parent.name if path.name == CONFIG else path.name}"
    return f"hf:{source.place}"


def _path_of_module(source: ModelSource, search_path: Sequence[str]) -> Path:
    """Find the file of a module that a worker would import, without importing it or its packages.

    The working directory comes last: a file in it cannot shadow an installed library.
    """
    folders = [*(entry for entry in search_path if entry), os.getcwd()]
    module, name = None, ""
    for part in source.place.split("."):
        name = f"{name}.{part}" if name else part
        module = PathFinder.find_spec(name, folders)
        if module is None:
            raise SpecError(
                "model",
                f"{source.place}:{source.factory}",
                f"there is no module {name}, neither installed nor in {os.getcwd()}",
            )
        folders = list(module.submodule_search_locations or [])
    if module is None or module.origin is None or not module.origin.endswith(".py"):
        raise SpecError("model", source.place, "a module or package written in Python")
    return Path(module.origin).resolve()


def _path_of_config(place: str) -> Path:
    path = Path(place).expanduser()
    if path.is_dir():
        path = path / CONFIG
    if path.is_file():
        return path.resolve()
    cached = _cached_config(place)
    if cached is None:
        raise SpecError(
            "model",
            f"hf:{place}",
            f"a {CONFIG}, its folder, or an id in the local cache {_cache_folder()}; nothing is "
            f"downloaded: `hf download {place} {CONFIG}` does that",
        )
    return cached


def _cache_folder() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    base = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(base).expanduser() / "hub"


def _cached_config(place: str) -> Path | None:
    """Return the cached configuration of an id: of its main branch, else of any revision."""
    folder = _cache_folder() / f"models--{place.replace('/', '--')}"
    revision = text_of(folder / "refs" / "main") or "*"
    return next(iter(sorted(folder.glob(f"snapshots/{revision}/{CONFIG}"))), None)


def _texts(source: ModelSource, path: Path) -> dict[str, bytes]:
    if source.door == "hf":
        files = {path, *path.parent.glob("*.py")} if path.name == CONFIG else {path}
    else:
        files = _local_files(source, path)
    root = root_of(source, path)
    return {str(file.relative_to(root)): _read(file) for file in files}


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MAX_BYTES)


def _parsed(file: Path) -> ast.Module:
    try:
        return _parsed_code(_read(file))
    except OSError:
        return ast.Module([], [])  # its import reports the error


def _parsed_code(code: bytes) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])  # its import reports the error


def _local_files(source: ModelSource, path: Path) -> set[Path]:
    """Return the file and its imports, also indirect ones, from its folder or its package.

    Of an installed library only its own file: its version identifies the rest.
    """
    root = root_of(source, path)
    files = {path}
    if source.door == "module" and _is_installed(path):
        return files
    waiting = [path]
    while waiting and len(files) < MAX_FILES:
        file = waiting.pop()
        for name, level in _imports(file):
            if (
                source.door == "module"
                and not level
                and name.partition(".")[0] != source.top_package
            ):
                continue
            base = file.parents[level - 1] if level else root
            for found in _files_of(base, name):
                if found not in files and found.is_relative_to(root):
                    files.add(found)
                    waiting.append(found)
    return files


def _is_installed(path: Path) -> bool:
    return not INSTALLED.isdisjoint(path.parts)


def _files_of(base: Path, name: str) -> Iterator[Path]:
    """Yield the files that importing a dotted name under a folder can read."""
    path = base
    for part in name.split(".") if name else ():
        path = path / part
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                yield file
    if not name and (base / "__init__.py").is_file():
        yield base / "__init__.py"


def _imports(file: Path) -> list[tuple[str, int]]:
    """Return the dotted names that a file imports with their relative level; none if it is broken.

    Both ``from a import b`` and ``import a.b`` give ``a.b``: b may be a module.
    """
    try:
        return _imports_of(_read(file))
    except OSError:
        return []  # its import reports the error


@lru_cache(MAX_FILES)
def _imports_of(code: bytes) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(_parsed_code(code)):
        if isinstance(node, ast.Import):
            found += [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = f"{node.module}." if node.module else ""
            found += [(start + alias.name, node.level) for alias in node.names]
    return found


def factories_in(path: Path) -> list[str]:
    """Return the functions and classes at a file's top level, functions first, without running it.

    Empty if the file is broken or cannot be read.
    """
    nodes = _parsed(path).body
    definitions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    definitions.sort(key=lambda node: isinstance(node, ast.ClassDef))
    return [node.name for node in definitions if not node.name.startswith("_")]


def _version(name: str) -> str:
    from importlib import metadata  # lazy: imports email

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
    for distribution in metadata.packages_distributions().get(name, ()):
        return metadata.version(distribution)
    return ""
