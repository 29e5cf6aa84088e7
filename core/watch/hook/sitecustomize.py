"""Starts the step recorder in a Python process of a watched command, then the user's sitecustomize.

`watch` puts this folder on ``PYTHONPATH``. It is taken off ``sys.path`` again, so that the process
finds the modules that it would find without it; its children inherit the variable. Only the
standard library is used, in the syntax of Python 3.8: the interpreter is the command's own.
"""

import importlib
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_recorder() -> None:
    spec = importlib.util.spec_from_file_location(
        "_sysbench_recorder", os.path.join(_HERE, "step_recorder.py")
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.start_recorder(os.environ["SYSBENCH_WATCH"])


def _import_users() -> None:
    """Import the sitecustomize that Python would have found without this folder."""
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
sys.path_importer_cache.pop(_HERE, None)
if os.environ.get("SYSBENCH_WATCH"):
    _start_recorder()
_import_users()
