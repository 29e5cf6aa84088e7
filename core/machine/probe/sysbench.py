"""The package ``sysbench`` in a Python that does not have it installed.

This file's folder is on the import path of a worker in another Python.
"""

from pathlib import Path

# A module with a path is a package: this is the folder that contains ``core``.
__path__ = [str(Path(__file__).parents[3])]
