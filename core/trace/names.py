"""Names that tables give to what has no name in a trace. No numpy here: commands print them."""

from __future__ import annotations

WHOLE_MODEL = "model"
"""The path of the model itself, and of what happens outside every module."""
GRAD_ACCUMULATE = "grad accumulate"
LOSS = "loss"
MODEL_PHASES = ("forward", LOSS, "backward")
