"""`mcp`: answer a client of the Model Context Protocol on standard input and output.

A tool is a command of the registry, and a call is a process of this program with ``--json``, so
that an answer is the command's own. The four requests that tools need are written here: the package
``mcp`` depends on 27 others, among them a web server, OAuth and compiled cryptography.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from threading import Lock
from typing import IO, Any

import msgspec

from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.formatting import did_you_mean
from sysbench.core.machine.children import python_child
from sysbench.core.spec.own_model import names_code
from sysbench.core.storage import UNREADABLE_JSON
from sysbench.core.tables.brief import LIMITS, shorten
from sysbench.core.tables.cells import literal_json
from sysbench.tui.commands.arguments import output_path, parse_count
from sysbench.tui.commands.output import print_json
from sysbench.tui.commands.registry import COMMANDS, parse_arguments, whole_parser
from sysbench.tui.commands.spec_arguments import asked_spec

PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the protocol with the same four requests, newest first."""
READING = ("list", "show", "inspect", "compare", "estimate", "top", "doctor", "schema")
"""Commands that are tools without ``--allow-run``."""
NO_TOOLS = ("mcp", "web", "serve", "completions")
NOT_OFFERED = ("help", "json", "no_pager", "wide", "csv", "md")
"""Options for terminals, or of another format."""
NOT_READING = ("force", "python")
"""Options of reading commands that replace files or start a program."""
ENVELOPE = ("schema", "command", "version")
ROW_CHOICES = {"section", "row", "top", "fields", "min_share"}
DEFAULT_TOP = 20
MAX_REQUEST_BYTES = 2**20
MAX_ANSWER_BYTES = 2**15
MAX_READ_BYTES = 2**26
"""Bytes of an answer that are read; the rest is dropped."""
MAX_WORD_BYTES = 2**16
MAX_CALLS = 4
"""Calls at a time; further ones wait."""
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMETERS = -32700, -32600, -32601, -32602


@dataclass(frozen=True, slots=True)
class CommandTool:
    """A command, or an action of one, with the options that a client may set."""

    words: tuple[str, ...]
    parser: argparse.ArgumentParser
    is_reading: bool

    @property
    def name(self) -> str:
        return "_".join(self.words)

    @property
    def arguments(self) -> dict[str, argparse.Action]:
        """Arguments by the longest option's name."""
        found = {}
        for action in self.parser._actions:
            long = max(action.option_strings, key=len, default=action.dest)
            name = long.lstrip("-").replace("-", "_")
            is_nested = isinstance(action, argparse._SubParsersAction)
            if not (is_nested or name in NOT_OFFERED or (self.is_reading and self._writes(action))):
                found[name] = action
        return found

    def _writes(self, action: argparse.Action) -> bool:
        does_measure = self.words == ("doctor",)  # with any option
        return does_measure or action.type is output_path or action.dest in NOT_READING

    @property
    def takes_commands(self) -> bool:
        return COMMANDS[self.words[0]].takes_commands

    def describe(self) -> dict[str, Any]:
        """Return the tool as ``tools/list`` has it."""
        arguments = self.arguments
        properties = {name: _property(action) for name, action in arguments.items()}
        if self.takes_commands:
            what = "two shell commands to measure, in place of a and b"
            properties["commands"] = {**_LIST, "description": what}
        if "brief" in properties:
            properties["brief"]["description"] += f" (default: true without {', '.join(ROWS)})"
        elif "top" in properties:
            properties["top"]["default"] = DEFAULT_TOP
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = [name for name, one in arguments.items() if _is_required(one)]
        return {
            "name": self.name,
            "description": self.parser.description or COMMANDS[self.words[0]].summary,
            "inputSchema": {**schema, "required": required, "additionalProperties": False},
            "annotations": {
                "readOnlyHint": self.is_reading,
                "destructiveHint": self.words[-1] in ("rm", "delete"),
            },
        }

    def command_line(self, given: Mapping[str, Any]) -> list[str]:
        """Return the words after the program's name. No value can be taken for another option.

        Raises:
            SpecError: An argument is unknown or of another type.
        """
        arguments, options, places = self.arguments, ["--json"], list[str]()
        known = [*arguments, *(["commands"] if self.takes_commands else [])]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known).strip() or f"arguments: {', '.join(known)}"
                raise SpecError(name, given[name], hint)
        chosen = {**self._defaults(given), **given}
        for name, action in arguments.items():
            value = chosen.get(name)
            if action.nargs == 0:
                if not isinstance(value, bool | None):
                    raise SpecError(name, value, "true or false")
                options += action.option_strings[-1:] if value else []
                continue
            texts = _texts(name, value, is_list=_takes_many(action))
            if action.option_strings:
                flag = max(action.option_strings, key=len)
                options += [f"{flag}={text}" for text in texts]
            else:
                places += texts
        commands = _texts("commands", given.get("commands"), is_list=True)
        if not self.takes_commands:
            return [*self.words, *options, *(["--", *places] if places else [])]
        if dashed := next((text for text in places if text.startswith("-")), None):
            raise SpecError("a, b", dashed, "a name that does not begin with a dash")
        return [*self.words, *options, *places, *(w for one in commands for w in ("--", one))]

    def _defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names = self.arguments
        if "brief" in names:
            return {} if ROW_CHOICES & given.keys() else {"brief": True}
        return {"top": DEFAULT_TOP} if "top" in names else {}


ROWS = sorted(ROW_CHOICES)
_LIST = {"type": "array", "items": {"type": "string"}}


def tools_of(*, allow_run: bool) -> dict[str, CommandTool]:
    """Return tools by name: those that read, and with ``allow_run`` all others."""
    found = {}
    for name, parser in whole_parser().commands.items():
        if name in READING or (allow_run and name not in NO_TOOLS):
            for words, one in _actions_of((name,), parser):
                tool = CommandTool(words, one, name in READING)
                found[tool.name] = tool
    return found


def _actions_of(
    words: tuple[str, ...], parser: argparse.ArgumentParser
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield the parser, or those of its actions, such as ``baseline save``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (((*words, name), one) for name, one in action.choices.items())
            return
    yield words, parser


def _takes_many(action: argparse.Action) -> bool:
    is_repeated = isinstance(action, argparse._AppendAction)
    return is_repeated or action.nargs in ("*", "+", argparse.REMAINDER)


def _is_required(action: argparse.Action) -> bool:
    if action.option_strings:
        return action.required
    return action.nargs in (None, "+", argparse.REMAINDER)


def _property(action: argparse.Action) -> dict[str, Any]:
    about = {"description": (action.help or action.dest).replace("%%", "%")}
    if action.nargs == 0:
        return {"type": "boolean", **about}
    if action.choices is not None:
        one: dict[str, Any] = {"type": "string", "enum": [*map(str, action.choices)]}
    elif action.type in (int, parse_count):
        one = {"type": "integer"}
    else:
        one = {"type": "string"}
    return {"type": "array", "items": one, **about} if _takes_many(action) else {**one, **about}


def _texts(name: str, value: object, *, is_list: bool) -> list[str]:
    """Return a value as words for a command line; empty for None.

    Raises:
        SpecError: Not texts or numbers, or a text that no command line can have.
    """
    if value is None:
        return []
    values = value if is_list and isinstance(value, list) else [value]
    texts = []
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise SpecError(name, one, "a text or a number" + (", or a list" if is_list else ""))
        text = str(one)
        if "\0" in text or len(text.encode()) > MAX_WORD_BYTES:
            raise SpecError(name, text, f"at most {MAX_WORD_BYTES} bytes, without NUL")
        texts.append(text)
    return texts


def refuse_code(words: list[str]) -> None:
    """
    Raises:
        SpecError: The spec of an estimate names code to import.
    """
    try:
        spec = asked_spec(parse_arguments(words))
    except (SysbenchError, OSError, SystemExit):
        return  # the command itself reports it
    if names_code(spec.model):
        raise SpecError("model", spec.model, "would run its code: start with `mcp --allow-run`")


def bounded(document: dict[str, Any], length: int, rest: str) -> str:
    """Shorten lists and texts of a document until it fits; ``rest`` is the command for all."""
    added = {"truncated": True, "bytes": length, "rest": rest}
    for characters, entries in ((2000, 64), (1000, 32), (500, 16), *LIMITS):
        cut = {name: shorten(value, characters, entries) for name, value in document.items()}
        if len((text := _one_line({**cut, **added})).encode()) <= MAX_ANSWER_BYTES:
            return text
    return _one_line({name: document.get(name) for name in ENVELOPE} | added)


def _one_line(document: object) -> str:
    return literal_json(msgspec.json.encode(document), indent=0).decode()


class ToolServer:
    """Answers requests, each call of a tool in a thread and a process of its own."""

    def __init__(self, tools: Mapping[str, CommandTool], output: IO[bytes]) -> None:
        self._tools = tools
        self._output = output
        self._lock = Lock()
        self._processes: dict[object, subprocess.Popen[bytes]] = {}
        self._cancelled: set[object] = set()

    def serve(self, requests: IO[bytes]) -> None:
        """Answer one request a line until the input ends and the last call has been answered.

        A signal that ends this process interrupts the calls.
        """
        with ThreadPoolExecutor(MAX_CALLS) as pool:
            try:
                while line := requests.readline(MAX_REQUEST_BYTES):
                    if line.endswith(b"\n") or len(line) < MAX_REQUEST_BYTES:
                        self._receive(line, pool)
                        continue
                    while (more := requests.readline(MAX_REQUEST_BYTES)) and more[-1:] != b"\n":
                        pass
                    self._refuse(None, INVALID_REQUEST, f"more than {MAX_REQUEST_BYTES} bytes")
                pool.shutdown()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in [*self._processes.values()]:
                    _interrupt(process)
                raise

    def _receive(self, line: bytes, pool: ThreadPoolExecutor) -> None:
        if not line.strip():
            return
        try:
            request = msgspec.json.decode(line)
        except UNREADABLE_JSON as error:
            self._refuse(None, PARSE_ERROR, f"not JSON: {error}")
            return
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            self._refuse(None, INVALID_REQUEST, "not a request of JSON-RPC 2.0")
            return
        number, method = request.get("id"), request["method"]
        given = request.get("params")
        parameters = given if isinstance(given, dict) else {}
        if method == "notifications/cancelled":
            self._cancel(parameters.get("requestId"))
        if not isinstance(number, str | int | float):
            return  # a notification
        match method:
            case "initialize":
                self._answer(number, _introduction(parameters.get("protocolVersion")))
            case "ping":
                self._answer(number, {})
            case "tools/list":
                tools = [tool.describe() for tool in self._tools.values()]
                self._answer(number, {"tools": tools})
            case "tools/call":
                pool.submit(self._call, number, parameters)
            case _:
                self._refuse(number, NO_METHOD, f"no method {method[:100]!r}")

    def _cancel(self, number: object) -> None:
        with self._lock:
            if isinstance(number, str | int | float) and number in self._processes:
                self._cancelled.add(number)
                _interrupt(self._processes[number])

    def _call(self, number: object, parameters: Mapping[str, Any]) -> None:
        name, given = parameters.get("name"), parameters.get("arguments") or {}
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(given, dict):
            hint = did_you_mean(str(name), self._tools).strip() or "`tools/list` has all"
            self._refuse(number, INVALID_PARAMETERS, f"no tool {str(name)[:100]!r}: {hint}")
            return
        try:
            text, is_error = self._run(number, tool, given)
        except (SysbenchError, OSError) as error:
            text, is_error = f"sysbench-tui: {error}", True
        with self._lock:
            was_cancelled = number in self._cancelled
            self._cancelled.discard(number)
        if not was_cancelled:
            content = [{"type": "text", "text": text}]
            self._answer(number, {"content": content, "isError": is_error})

    def _run(self, number: object, tool: CommandTool, given: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the document, or the sentence on stderr and true if there is none."""
        words = tool.command_line(given)
        if tool.is_reading and tool.words == ("estimate",):
            refuse_code(words)
        with (
            subprocess.Popen(
                python_child("sysbench.tui.cli", *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ) as process,
            ThreadPoolExecutor(1) as reader,
        ):
            with self._lock:
                self._processes[number] = process
            assert process.stdout is not None and process.stderr is not None
            errors = reader.submit(_read_end, process.stderr)
            printed = _read_begin(process.stdout)
            code, said = process.wait(), errors.result()
            with self._lock:
                del self._processes[number]
        rest = shlex.join(["sysbench-tui", *words])
        return (_answer_text(printed, rest), False) if printed else (_sentence(said, code), True)

    def _answer(self, number: object, result: Mapping[str, Any]) -> None:
        self._send({"jsonrpc": "2.0", "id": number, "result": result})

    def _refuse(self, number: object, code: int, message: str) -> None:
        error = {"code": code, "message": message}
        self._send({"jsonrpc": "2.0", "id": number, "error": error})

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock, suppress(BrokenPipeError):
            self._output.write(msgspec.json.encode(message) + b"\n")
            self._output.flush()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the process and those that it started, as a terminal does."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


def _introduction(asked: object) -> dict[str, Any]:
    return {
        "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "sysbench-tui", "version": version("sysbench-tui")},
        "instructions": "Answers are briefs of 4 KiB; `section`, `top` and `fields` choose rows. "
        "`cannot_answer` and null are unknown, never zero. A difference is real only if `verdict` "
        "says so.",
    }


def _read_begin(stream: IO[bytes]) -> bytes:
    begin = stream.read(MAX_READ_BYTES)
    while stream.read(2**20):
        pass
    return begin


def _read_end(stream: IO[bytes]) -> bytes:
    end = b""
    while piece := stream.read(2**16):
        end = (end + piece)[-(2**14) :]
    return end


def _answer_text(printed: bytes, rest: str) -> str:
    """Return the document, within the limit."""
    try:
        document = msgspec.json.decode(printed, type=dict[str, Any])
    except UNREADABLE_JSON:  # larger than what is read, or output of a watched command
        return bounded({"text": printed.decode(errors="replace")}, len(printed), rest)
    text = _one_line(document)
    return text if len(text.encode()) <= MAX_ANSWER_BYTES else bounded(document, len(printed), rest)


def _sentence(said: bytes, code: int) -> str:
    """Return the last message of the program on stderr, after any progress."""
    text = said.decode(errors="replace").strip()
    start = text.rfind("\nsysbench-tui") + 1
    return text[start:] or f"sysbench-tui: ended with exit code {code}"


def serve_tools(arguments: argparse.Namespace) -> int:
    """Serve until the input ends; with ``--json`` print the tools instead."""
    tools = tools_of(allow_run=arguments.allow_run)
    if arguments.json:
        print_json([tool.describe() for tool in tools.values()])
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ToolServer(tools, sys.stdout.buffer).serve(sys.stdin.buffer)
    return 0
