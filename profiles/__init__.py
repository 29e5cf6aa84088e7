"""Shipped data: model sizes, GPUs and studies, as TOML."""
