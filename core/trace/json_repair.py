"""Decode a JSON list that its writer broke in small ways, and count what was repaired.

Each pass takes time in proportion to the text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

NOT_UTF8 = "bytes that are not UTF-8"
NOT_FINITE = "NaN or Infinity"
EXTRA_COMMA = "commas before a closing bracket"
BACKSLASHES = "texts with unescaped backslashes"
QUOTES = "names with unescaped quotes or control characters"
AFTER_EVENTS = "the text after the events"
BEFORE_EVENTS = "the text before the events"
TEXT_NUMBERS = "numbers written as text"

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TOKEN = re.compile(
    r'"[A-Za-z]:\\(?![\\"/bfnrtu])[^"]*+"|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
    r"|,(?=\s*+[\]}])|[-+]?\b(?:nan|inf(?:inity)?)\b",
    re.DOTALL | re.IGNORECASE,
)
"""An unescaped path of Windows, which may end with a backslash; any string, which the end of the
text may cut; a comma before a closing bracket; no number."""
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)?", re.DOTALL)
ESCAPES = frozenset('"\\/bfnrt')
NAME_BEGIN = '"name": "'
NAME_END = re.compile(r'",\s*+"pid"\s*+:')
NAME = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
NOT_IN_A_NAME = re.compile(r'["\\\x00-\x1f]')


class JsonFault(ValueError):
    """The text is no JSON, for a reason that is not repaired, at a line and column from 1."""

    def __init__(self, cause: str, position: int, line: int, column: int, *, is_end: bool) -> None:
        super().__init__(cause)
        self.cause, self.position, self.line, self.column = cause, position, line, column
        self.is_end = is_end


class RepairedList(NamedTuple):
    """Values of a list, the bytes after it, and what was repaired, with counts."""

    values: list[Any]
    rest: bytes
    repairs: Counter[str]


def decode_list(data: bytes, float_hook: Callable[[str], Any] = str) -> RepairedList:
    """Decode the list at the start of a text; JsonFault if it is none, or for other faults.

    ``float_hook`` gets the text of each number that has a fraction.
    """
    text = data.decode("utf-8", "replace")
    repairs = Counter({NOT_UTF8: text.count(REPLACEMENT) - data.count(REPLACEMENT.encode())})
    decoder = json.JSONDecoder(parse_float=float_hook, parse_constant=lambda _: None, strict=False)
    fault = None
    for is_cleaned in (False, True):
        whole, count = _clean_names(text) if is_cleaned else (text, 0)
        if is_cleaned and not count:
            break
        repaired = _Repaired(whole)
        try:
            values, end = decoder.raw_decode(repaired.text)
        except (json.JSONDecodeError, RecursionError) as error:
            fault = fault or repaired.fault(error)
            continue
        if not isinstance(values, list):
            break
        found = repairs + repaired.repairs + Counter({QUOTES: count})
        return RepairedList(values, repaired.text[end:].encode(), found)
    raise fault or JsonFault("it is not a list", 0, 1, 1, is_end=False)


class _Repaired:
    """A text with its small faults repaired."""

    def __init__(self, text: str) -> None:
        self.repairs: Counter[str] = Counter()
        self._original = text
        self._ends: list[int] = [0]  # of the repairs in the new text
        self._shifts: list[int] = [0]  # from there to the original text
        self.text = TOKEN.sub(self._repair, text)

    def fault(self, error: Exception) -> JsonFault:
        """Describe the decoder's error by its place in the original text."""
        if not isinstance(error, json.JSONDecodeError):
            return JsonFault("it is nested too deep", 0, 1, 1, is_end=False)
        last = bisect_right(self._ends, error.pos) - 1
        position = min(error.pos + self._shifts[last], len(self._original))
        line = self._original.count("\n", 0, position) + 1
        column = position - self._original.rfind("\n", 0, position)
        # A quote too many opens a string that nothing closes, too.
        text = self._original.rstrip()
        is_open = error.msg.startswith("Unterminated") and not text.endswith(("]", "}"))
        cause = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(" starting")
        return JsonFault(cause, position, line, column, is_end=is_open or position >= len(text))

    def _repair(self, match: re.Match[str]) -> str:
        token = match[0]
        if token[0] == '"':
            new = _escaped(token) if "\\" in token else token
            cause = BACKSLASHES
        else:
            new, cause = ("", EXTRA_COMMA) if token == "," else ("null", NOT_FINITE)
        if new is not token:
            self.repairs[cause] += 1
            shift = self._shifts[-1] + len(token) - len(new)
            self._ends.append(match.end() - shift)
            self._shifts.append(shift)
        return new


def _escaped(token: str) -> str:
    """Escape the backslashes of a string in which one escapes nothing, as in ``C:\\Users``."""
    inside = token[1:-1] if token.endswith('"') else token[1:]
    escapes = [match[1] or "" for match in ESCAPE.finditer(inside)]
    if all(escape in ESCAPES or len(escape) > 1 for escape in escapes):
        return token
    return f'"{ESCAPE.sub(_literal, inside)}{token[len(inside) + 1 :]}'


def _literal(match: re.Match[str]) -> str:
    return match[0] if match[1] in ('"', "\\") else f"\\{match[0]}"


def _clean_names(text: str) -> tuple[str, int]:
    """Replace characters that a name may not have, and count these names.

    The profiler reads some functions' names from freed memory. It writes ``pid`` after a name.
    """
    parts, count, done, searched = [], 0, 0, 0
    for end in NAME_END.finditer(text):
        begin = text.rfind(NAME_BEGIN, searched, end.start()) + len(NAME_BEGIN)
        searched = end.end()
        if begin >= len(NAME_BEGIN) and not NAME.fullmatch(text, begin, end.start()):
            name = NOT_IN_A_NAME.sub(REPLACEMENT, text[begin : end.start()])
            parts += [text[done:begin], name]
            done, count = end.start(), count + 1
    return "".join((*parts, text[done:])), count
