"""Replace what identifies a person or a machine in JSON, and count it by kind."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
PATH = "path"
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
    r"\b(?:10|127|172|192)(?:\.\d{1,3}){3}\b|(?<=//)\d{1,3}(?:\.\d{1,3}){3}"
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
            if long and not word.endswith((".py", ".sh")):
                self._add("command line", word)

    def _add(self, kind: str, name: str) -> None:
        """Replace a name in all texts, unless it is too short or common to be told from words."""
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
        if text[:1] == "/":
            text = _WHOLE_PATH.sub(self._shortened, text, count=1)
        for pattern, replace in self._rules():
            text = pattern.sub(replace, text)
        return text

    def _rules(self) -> Iterator[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        yield _PATH, self._shortened
        yield UUID, lambda match: self._counted("serial number", f"{match[1]}-(serial number)")
        yield _SERIAL, lambda match: self._counted("serial number", "(serial number)")
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
        return self._counted(PATH, f"…/{kept}")

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
            return {self._key(name): self.document(inner, name) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(inner, key) for inner in value]
        return value

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _command(self, value: str | list[str]) -> str | list[str]:
        """Keep the names of the program and of scripts; the form, words or JSON, stays."""
        words = [value] if isinstance(value, str) and not value.startswith("[") else _words(value)
        if not words or not words[0]:
            return value
        self.counts["command line"] += 1
        if isinstance(value, str) and not value.startswith("["):
            return HIDDEN
        script = (".py", ".sh", ".ipynb")
        kept = [
            self.text(Path(word).name) if not place or word.endswith(script) else HIDDEN
            for place, word in enumerate(words)
        ]
        return json.dumps(kept) if isinstance(value, str) else kept


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


def _names_here() -> Iterator[tuple[str, str]]:
    """Yield kind and text of the names of this machine, user and folders."""
    account = pwd.getpwuid(os.getuid()) if _has_account() else None
    folders = [Path.home(), Path.cwd(), home(), Path(tempfile.gettempdir())]
    if account:
        folders.append(Path(account.pw_dir))
        yield "user", account.pw_name
    for folder in dict.fromkeys([*folders, *(Path(os.path.realpath(one)) for one in folders)]):
        if len(folder.parts) > 2 and folder != Path(tempfile.gettempdir()):
            yield PATH, str(folder)
    for name in (Path.home().name, *map(os.environ.get, ("USER", "LOGNAME"))):
        yield "user", name or ""
    host = socket.gethostname()
    for name in (host, host.partition(".")[0], os.environ.get("HOSTNAME", "")):
        yield "host", name


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
