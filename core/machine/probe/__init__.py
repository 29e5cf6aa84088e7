"""Folder through which another Python imports this package; contains nothing else."""
