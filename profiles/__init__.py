"""Data that ships with the program: model sizes, GPUs and studies, as TOML."""
