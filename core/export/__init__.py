"""Exports: artifacts for other tools, and tables."""
