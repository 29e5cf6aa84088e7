"""Specs saved under a name, as TOML, and the reader of any spec file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sysbench.core.errors import ClusterError, NotFoundError, ProfileError, SpecError
from sysbench.core.machine.devices import hosts_of, resolve_device, shares
from sysbench.core.record.blocks import EVERY_PASS, PassName
from sysbench.core.spec.fields import field_named
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.own_model import with_arguments
from sysbench.core.spec.passes import parse_passes
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.storage import home, make_folder, write_atomically

MAX_FILE_BYTES = 2**18
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def profiles_folder() -> Path:
    return home() / "profiles"


def list_profiles() -> list[str]:
    folder = profiles_folder()
    return sorted(path.stem for path in folder.glob("*.toml")) if folder.is_dir() else []


def profiles_in_words() -> str:
    return ", ".join(list_profiles()) or "none saved yet"


def save_profile(name: str, spec: RunSpec, passes: Sequence[str] | None = None) -> Path:
    """Save the spec's settings under a name, replacing an existing profile.

    Raises:
        SpecError: The name is not letters, digits, dot, dash and underscore.
    """
    path = profile_path(name)
    lines = [f"# sysbench-tui run {name}", f"passes = {_toml(list(passes or spec.default_passes))}"]
    # A bare dotted key would be a table in the text ``model``.
    lines += [
        f"{_toml(key) if '.' in key else key} = {_toml(value)}"
        for key, value in spec.settings().items()
    ]
    make_folder(path.parent)
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def load_profile(name: str) -> tuple[RunSpec, list[PassName]]:
    """Load a profile.

    Raises:
        NotFoundError: No such profile.
        ProfileError: It cannot be read, or has an invalid key or value.
    """
    path = profile_path(name)
    if not path.is_file():
        raise NotFoundError(f"no profile {name!r}: {profiles_in_words()}")
    settings, passes = read_spec_file(path)
    spec = parse_spec(settings)
    return spec, passes or list(spec.default_passes)


def profile_path(name: str) -> Path:
    """Return the file of a profile; reject names that would leave the folder."""
    if not NAME.fullmatch(name):
        raise SpecError("profile", name, "letters, digits, dot, dash and underscore, up to 64")
    return profiles_folder() / f"{name}.toml"


def read_spec_file(path: Path) -> tuple[dict[str, Any], list[PassName] | None]:
    """Read settings and passes of a TOML spec file; ProfileError names the line or key."""
    settings = read_toml(path, "a spec")
    try:
        passes = settings.pop("passes", None)
        parsed = None if passes is None else parse_passes(_texts(passes))
        merged = with_arguments(settings)
        return {name: field_named(name).parse(value) for name, value in merged.items()}, parsed
    except SpecError as error:
        raise ProfileError(f"{path}: {error}") from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file that a user wrote; ``what`` it should be is for the message.

    Raises:
        ProfileError: It cannot be read, is too large, or is not TOML.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProfileError(f"{path}: larger than {MAX_FILE_BYTES // 1024} KiB, not {what}")
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 text ({error.reason})") from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ProfileError(f"{path}: not TOML: {error}") from error


def _texts(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise SpecError("passes", value, f"a list of {', '.join(EVERY_PASS)}")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def resolve(
    spec: RunSpec, find: Callable[[str], str] = resolve_device, *, python: str | None = None
) -> RunSpec:
    """Return the spec with ``device = auto`` resolved, and the code located.

    Args:
        find: `resolve_device`, or a cache of it.
        python: Interpreter of the workers; empty for this one (default: the chosen one).

    Raises:
        SpecError: There is no such device, or it does not support the spec; or the code of a user's
            model was not found.
    """
    spec = locate(spec.changed(device=find(spec.device)), python)
    try:
        hosts = max(1, len(hosts_of(spec.ranks)))
    except ClusterError as error:
        raise SpecError("ranks", spec.ranks, f"1 here: {error}") from error
    most = shares(spec.ranks, hosts)[0]
    for count, device in enumerate(spec.devices[1:most] if spec.on_cuda else (), 1):
        try:
            find(device)
        except SpecError as error:
            where = "here" if hosts == 1 else f"on {hosts} nodes like this one"
            allowed = f"at most {count * hosts} {where}, each rank has a CUDA device: {error}"
            raise SpecError("ranks", spec.ranks, allowed) from error
    return spec
