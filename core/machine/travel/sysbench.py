"""The package ``sysbench`` where it is not installed: its parts are those of this installation.

This file's folder is put on the import path of a worker in another Python.
"""

from pathlib import Path

# A module with a path is a package: the folder that holds ``core`` is that of its parts.
__path__ = [str(Path(__file__).parents[3])]
