"""The theme that a user chose, kept between starts."""

from __future__ import annotations

import msgspec

from sysbench.core.storage import UNREADABLE_JSON, home, make_folder, write_atomically

FILE = "screens.json"


class Choices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user chose about the screens; ``theme`` is empty until one is chosen."""

    theme: str = ""


def kept_choices() -> Choices:
    """What was kept last; the defaults where nothing was, or where it cannot be read."""
    try:
        return msgspec.json.decode((home() / FILE).read_bytes(), type=Choices)
    except (OSError, *UNREADABLE_JSON):
        # A theme is not worth a message at the start: the next choice writes the file anew.
        return Choices()


def keep(choices: Choices) -> None:
    """Keep these for the next start.

    Raises:
        OSError: Nothing was written.
    """
    make_folder(home())
    write_atomically(home() / FILE, msgspec.json.encode(choices))
