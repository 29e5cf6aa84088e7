"""Replace what identifies a person or a machine in JSON, and count it by kind."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from sysbench.core.machine.read_environment import UUID
from sysbench.core.storage import home

KIND_OF_KEY = {
    **dict.fromkeys(("host", "hostname", "host_name", "node_name"), "host"),
    **dict.fromkeys(("user", "username", "user_name", "login"), "user"),
    **dict.fromkeys(("uuid", "serial", "serial_number", "device_uuid"), "serial number"),
    **dict.fromkeys(("variables", "environ", "env"), "environment value"),
    **dict.fromkeys(("command", "argv", "cmdline", "command_line"), "command line"),
}
"""Kinds of values by their keys, in any document."""
FIELDS = ("host", "user", "serial number")
"""Kinds whose fields are replaced whole, and whose values are then replaced in all texts."""
NUMBERED = ("host", "user")
HIDDEN = "(hidden)"
SCRIPTS = (".py", ".sh", ".ipynb")
_SAFE = r"[^/\s'\"`()<>\[\]{},;|:=]"
_PATH = re.compile(
    rf"(?:file://|(?<![\w./~>…]))~?/(?!/)(?:{_SAFE}+/)+{_SAFE}*"
    r"|\b[A-Za-z]:\\(?:[^\\\s\"']+\\)+[^\\\s\"']*"
)
_WHOLE_PATH = re.compile(
    r"(?:/|[A-Za-z]:\\)[^\n]*?\.(?:py|so|json|gz|pickle|sqlite|pftrace)(?=$|[\s(:])"
)
"""A path at the start of a text, which may contain blanks."""
_PACKAGES = re.compile(r".*[/\\](?:site-packages|dist-packages|lib/python3\.\d+)[/\\](?=.)")
_HOME = re.compile(r"[/\\](?:home|[Uu]sers)[/\\]([^/\\\s:'\"]+)")
_TRACE_NAME = re.compile(r"([A-Za-z0-9][\w.-]*?)_\d+\.(?:\d+\.)?pt\.trace\.json")
"""Default name of a file of TensorBoard's handler: host, process, time."""
_SERIAL = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"
)
_ADDRESS = re.compile(
    r"(?<!==)\b(?:10|127|172|192)(?:\.\d{1,3}){3}\b|(?<=//)\d{1,3}(?:\.\d{1,3}){3}"
    r"|[\w.+-]+@[\w-]+\.[\w.]+"
)
_COMMON = re.compile(
    "admin|app|cpu|cuda|data|docker|gpu|home|host|job|local|localhost|main|model|node|none|nobody"
    "|python|root|run|runner|sysbench|test|tmp|torch|train|ubuntu|user|users|work",
    re.IGNORECASE,
)
"""Names that say nothing about a person or machine, and are parts of other words."""
MIN_ARGUMENT_CHARS = 8


class Redaction:
    """Replaces texts in documents of one run or file; equal texts have equal replacements.

    First call `learn` with every document: names found in one are then replaced in all.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._replaced: dict[str, tuple[str, Counter[str]]] = {}
        self._folders = _folders_here()
        self._pattern = re.compile(r"(?!)")
        self._numbers: dict[str, dict[str, int]] = {}
        self._names: dict[str, tuple[str, str]] = {}
        """Replacement and kind of each name that is replaced wherever it is."""
        for kind, name in _names_here():
            self._add(kind, name)

    def learn(self, document: object) -> None:
        for key, value in _leaves(document, ""):
            kind = KIND_OF_KEY.get(key, "")
            if kind in FIELDS:
                self._add(kind, value)
            elif kind == "command line":
                self._add_command(_words(value))
            for match in _HOME.finditer(value):
                self._add("user", match[1])
            for match in _TRACE_NAME.finditer(value):
                self._add("host", match[1])
        self._pattern = self._compiled()

    def _add_command(self, words: Sequence[str]) -> None:
        self._add("command line", shlex.join(words))
        self._add("command line", " ".join(words))
        for word in words[1:]:
            long = len(word) >= MIN_ARGUMENT_CHARS and not word.startswith("-")
            if long and not word.endswith(SCRIPTS):
                self._add("command line", word)

    def _add(self, kind: str, name: str) -> None:
        """Replace a name in all texts, unless it is short, or a common word."""
        name = name.strip()
        if len(name) >= 3 and not _COMMON.fullmatch(name) and name != HIDDEN:
            self._names.setdefault(name, self._replacement(kind, name))

    def _replacement(self, kind: str, name: str) -> tuple[str, str]:
        if kind not in NUMBERED:
            return f"({kind})", kind
        known = self._numbers.setdefault(kind, {})
        return f"{kind}-{known.setdefault(name, len(known) + 1)}", kind

    def _compiled(self) -> re.Pattern[str]:
        names = sorted(self._names, key=len, reverse=True)
        # A short name is a word of its own; a long one is replaced inside others, too.
        parts = (
            re.escape(name)
            if len(name) >= 6
            else rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            for name in names
        )
        return re.compile("|".join(parts) or r"(?!)")

    def text(self, text: str) -> str:
        """Return the text without paths, serial numbers, addresses and known names."""
        if text not in self._replaced:
            before, self.counts = self.counts, Counter()
            self._replaced[text] = (self._replace(text), self.counts)
            self.counts = before
        replaced, counts = self._replaced[text]
        self.counts += counts
        return replaced

    def _replace(self, text: str) -> str:
        text = self._folders.sub("/_/_", text)  # a path without blanks, for the next rules
        if text[:1] == "/":
            text = _WHOLE_PATH.sub(self._shortened, text, count=1)
        for pattern, replace in self._rules():
            text = pattern.sub(replace, text)
        return text

    def _rules(self) -> Iterator[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        yield _PATH, self._shortened
        for pattern in (UUID, _SERIAL):
            yield pattern, lambda match: self._counted("serial number", "(serial number)")
        yield _ADDRESS, lambda match: self._counted("address", "(address)")
        yield self._pattern, self._named

    def _named(self, match: re.Match[str]) -> str:
        replacement, kind = self._names[match[0]]
        return self._counted(kind, replacement)

    def _shortened(self, match: re.Match[str]) -> str:
        """Keep the part inside a package, else the last name."""
        path = match[0].rstrip("/\\")
        inside = _PACKAGES.sub("", path)
        kept = inside if inside != path else re.split(r"[/\\]", path)[-1]
        return self._counted("path", f"…/{kept}")

    def _counted(self, kind: str, replacement: str) -> str:
        self.counts[kind] += 1
        return replacement

    def document(self, value: Any, key: str = "") -> Any:
        """Return a copy of decoded JSON, keys included, with replaced texts."""
        kind = KIND_OF_KEY.get(key, "")
        if kind == "environment value" and isinstance(value, Mapping):
            self.counts[kind] += len(value)
            return {self.text(name): HIDDEN for name in value}
        if kind == "command line" and isinstance(value, str | list):
            return self._command(value)
        if kind in FIELDS and isinstance(value, str) and value:
            return self._counted(kind, self._replacement(kind, value)[0])
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(name) if isinstance(name, str) else name: self.document(inner, str(name))
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.document(inner, key) for inner in value]
        return value

    def _command(self, value: str | list[str]) -> str | list[str]:
        """Keep the names of the program and of scripts; the form, words or JSON, stays."""
        words = _words(value)
        self.counts["command line"] += bool(words)
        kept = [
            self.text(Path(word).name) if not place or word.endswith(SCRIPTS) else HIDDEN
            for place, word in enumerate(words)
        ]
        if isinstance(value, list):
            return kept
        return json.dumps(kept) if value.startswith("[") else shlex.join(kept)


def _words(value: str | list[str]) -> list[str]:
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        words = json.loads(value) if value.startswith("[") else shlex.split(value)
    except ValueError:
        words = value.split()
    return [str(word) for word in words]


def _leaves(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield each text with its key; a list of words under the key of a command as one."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        yield from (("", name) for name in value if isinstance(name, str))
        yield from chain.from_iterable(_leaves(inner, str(name)) for name, inner in value.items())
    elif isinstance(value, list | tuple):
        if KIND_OF_KEY.get(key) == "command line" and all(isinstance(one, str) for one in value):
            yield key, json.dumps(value)
        else:
            yield from chain.from_iterable(_leaves(inner, key) for inner in value)


def _folders_here() -> re.Pattern[str]:
    """Match the user's folders, whose names may contain blanks."""
    folders = [Path.home(), Path.cwd(), home()]
    names = {str(one) for folder in folders for one in (folder, os.path.realpath(folder))}
    long = sorted((name for name in names if name.count("/") > 1), key=len, reverse=True)
    return re.compile("|".join(rf"{re.escape(name)}(?![\w.-])" for name in long) or r"(?!)")


def _names_here() -> Iterator[tuple[str, str]]:
    """Yield kind and text of the names of this machine and user."""
    yield "user", Path.home().name
    with suppress(KeyError, OSError):  # a user without an account, as in containers
        yield "user", pwd.getpwuid(os.getuid()).pw_name
    yield from (("user", os.environ.get(name, "")) for name in ("USER", "LOGNAME"))
    host = socket.gethostname()
    for name in (host, host.partition(".")[0], os.environ.get("HOSTNAME", "")):
        yield "host", name
