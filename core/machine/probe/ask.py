"""Print facts about this Python interpreter as one line of JSON: ``PYTHON ask.py QUESTION``.

Any Python that a user names runs it, so an old one must be able to report its version. The question
is JSON: ``modules`` to look for, the ``program`` on the import path, distributions in ``packages``,
and imports in ``libraries``, whose versions are wanted.
"""

import json
import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder, which has to come by PYTHONPATH

answer = {"version": ".".join(map(str, sys.version_info[:3]))}  # type: dict[str, object]
if sys.version_info >= (3, 11):  # noqa: UP036
    import sysconfig
    from contextlib import suppress
    from importlib import metadata
    from importlib.util import find_spec
    from pathlib import Path

    def origin(name: str) -> str:
        """Return the path of a module; empty for a folder that an uninstalled package left."""
        try:
            spec = find_spec(name)
        except ImportError:  # of the parent folder
            return ""
        return spec.origin or "" if spec else ""

    def is_missing(name: str) -> bool:
        try:
            return find_spec(name) is None
        except ValueError:  # a module that was inserted by hand
            return False

    question = json.loads(sys.argv[1])
    packages, libraries = {}, {}
    for name in question["packages"]:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    for name in question["libraries"]:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            for distribution in metadata.packages_distributions().get(name, [])[:1]:
                libraries[name] = metadata.version(distribution)
    answer |= {
        "environment": Path(sys.prefix).name,
        "search_path": sys.path,
        "absent": [name for name in question["modules"] if not origin(name)],
        "program": origin(question["program"]),
        "torch": origin("torch"),
        "has_pip": bool(origin("pip")),
        "packages": packages,
        "libraries": libraries,
        "missing": [name for name in question["libraries"] if is_missing(name)],
        "headers": sysconfig.get_path("include"),
    }
print("\nsysbench-tui: " + json.dumps(answer))
