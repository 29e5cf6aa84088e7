"""Operators without a module in a trace of a training step."""

GRADIENT_OF_LOSS = {"ones_like", "empty_like", "empty_strided", "fill_", "detach"}
"""Operators that begin backward: no module asked for them."""
