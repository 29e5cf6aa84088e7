"""The folder by which another Python imports this package, and nothing else."""
