"""What a Python has, told as a line of JSON: ``PYTHON ask.py QUESTION``.

It is run by any Python that somebody names: it is plain, so that an old one can tell its version.
The question is JSON: names of ``modules`` to look for, the ``program`` that is on its import path,
``packages`` whose versions are wanted, and ``libraries`` whose versions are wanted by the name of
their import; those that cannot be imported are ``missing``.
"""

import json
import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder, which has to come by PYTHONPATH

answer = {"version": ".".join(map(str, sys.version_info[:3]))}  # type: dict[str, object]
if sys.version_info >= (3, 11):  # noqa: UP036
    import sysconfig
    from importlib import metadata
    from importlib.util import find_spec
    from pathlib import Path

    question = json.loads(sys.argv[1])
    found = {name: find_spec(name) for name in question["modules"] + ["torch", "pip"]}
    try:
        program = find_spec(question["program"])
    except ImportError:
        program = None
    versions = {}
    for name in question["packages"]:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    missing = []
    for name in question["libraries"]:
        try:
            if find_spec(name) is None:
                missing.append(name)
        except ValueError:  # a module that was put there by hand
            continue
    libraries = {}
    for name in question["libraries"]:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            for distribution in metadata.packages_distributions().get(name, [])[:1]:
                libraries[name] = metadata.version(distribution)
    # A folder that an uninstalled package has left behind is found, too, but has no origin.
    origins = {name: spec.origin for name, spec in found.items() if spec and spec.origin}
    answer |= {
        "environment": Path(sys.prefix).name,
        "search_path": sys.path,
        "absent": [name for name in question["modules"] if name not in origins],
        "program": program.origin if program and program.origin else "",
        "torch": origins.get("torch", ""),
        "has_pip": "pip" in origins,
        "packages": versions,
        "libraries": libraries,
        "missing": missing,
        "headers": sysconfig.get_path("include"),
    }
print("\nsysbench-tui: " + json.dumps(answer))
