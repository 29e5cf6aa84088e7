"""What a JSON document has beside the keys that every document has."""

from __future__ import annotations

import json
from typing import Any

ENVELOPE = {"schema", "command", "version", "total", "truncated", "tables"}


def content(text: str | bytes, *, of_record: bool = False) -> Any:
    """Return a command's own data: the rows of a list, and None if it cannot answer.

    Args:
        of_record: Keep ``schema``, which a record has itself.
    """
    document = json.loads(text)
    assert {"schema", "command", "version"} <= document.keys()
    if document.keys() - ENVELOPE == {"cannot_answer"}:
        assert document["cannot_answer"]["reason"]
        return None
    if document.keys() - ENVELOPE == {"rows"}:
        assert document["total"] == len(document["rows"]) or document["truncated"]
        return [_without_key(row) for row in document["rows"]]
    left_out = ENVELOPE - ({"schema"} if of_record else set())
    return {key: value for key, value in document.items() if key not in left_out}


def _without_key(row: Any) -> Any:
    return {name: row[name] for name in row if name != "key"} if isinstance(row, dict) else row
