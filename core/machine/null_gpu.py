"""The mark of a null GPU: PyTorch's CUDA build on libraries whose kernels compute nothing.

Its memory, launches and names are the host's own and real; its times are made up. The stand-in for
the driver puts the mark behind the card's name, so that it is wherever the name is.
"""

from __future__ import annotations

MARK = "(null GPU)"
WORDS = "null GPU"
"""The mark where a time, or what follows from one, would stand or stands."""
NO_TIMES = "times of a null GPU mean nothing"
"""The reason wherever a time is compared or summed up, and one of them is from there."""
NO_TIMES_HEADED = f"{NO_TIMES[0].upper()}{NO_TIMES[1:]}"
"""As the begin of a sentence."""


def is_null(name: str | None) -> bool:
    """Whether a device's name has the mark."""
    return name is not None and name.endswith(MARK)


def card_name(name: str) -> str:
    """The name of the card that a device is or stands in for: without the mark."""
    return name.removesuffix(MARK).rstrip()
