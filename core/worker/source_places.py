"""The place of an error in code: the expression of a frame, and the user's line."""

from __future__ import annotations

import linecache
import os
import traceback
from typing import cast

from sysbench.core.spec.spec import RunSpec


def users_place(error: BaseException, spec: RunSpec) -> str:
    """``model.py:12 in make: open(path)``: the innermost line of the user's code in the chain.

    Empty where it was not running, and of the built-in models.
    """
    folder = os.path.dirname(spec.model_file) + os.sep
    place, link = "", cast(BaseException | None, error)
    while spec.model_file and link is not None:
        frames = traceback.extract_tb(link.__traceback__)
        own = [frame for frame in frames if _is_users(frame.filename, folder)]
        if isinstance(link, SyntaxError) and link.filename and _is_users(link.filename, folder):
            line = (link.text or "").strip()
            place = f"{os.path.relpath(link.filename, folder)}:{link.lineno}: {line}"
        elif own:
            name = os.path.relpath(own[-1].filename, folder)
            place = f"{name}:{own[-1].lineno} in {own[-1].name}: {expression_of(own[-1]) or ''}"
        link = link.__cause__ or link.__context__
    return place.removesuffix(": ")


def _is_users(filename: str, folder: str) -> bool:
    """Whether a file is beside the model's, and in no installed library below it."""
    return filename.startswith(folder) and f"{os.sep}site-packages{os.sep}" not in filename


def expression_of(frame: traceback.FrameSummary) -> str | None:
    """The code that the frame was evaluating, joined to one line; None without its source."""
    if frame.lineno is None or frame.end_lineno is None:
        return frame.line or None
    lines = linecache.getlines(frame.filename)[frame.lineno - 1 : frame.end_lineno]
    if not lines or frame.colno is None or frame.end_colno is None:
        return frame.line or None
    # Columns count bytes. Cut the end first: cutting the start of a single line would shift it.
    lines[-1] = lines[-1].encode()[: frame.end_colno].decode(errors="replace")
    lines[0] = lines[0].encode()[frame.colno :].decode(errors="replace")
    return " ".join("".join(lines).split())
