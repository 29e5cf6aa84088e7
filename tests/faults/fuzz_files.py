"""Damages traces, snapshots and exports at random, and inspects each in a process of its own.

``python -m tests.faults.fuzz_files --count 3000 --seed 7``; without a seed, a new one is drawn and
printed. A failing input is kept, and its path printed with what is wrong.

An input fails if ``inspect`` or ``inspect --json``

- ends with another code than 0 or 2, or prints a traceback,
- takes more than 30 s of processor time, or 1.5 GiB in one process,
- prints a control character, or JSON with NaN or Infinity,
- is read, and its sums do not hold: rows + idle + unattributed = span, categories = rows, phases =
  span, the parts of a step = its length, ledger = peak.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import random
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from math import fsum, isclose
from pathlib import Path
from threading import Timer
from typing import IO, Any, NamedTuple, NoReturn

from sysbench.core.inspection import __main__ as _preloaded  # noqa: F401
from sysbench.core.inspection import decoding
from sysbench.tui import cli
from sysbench.tui.commands import inspect_report as _too  # noqa: F401
from tests.core.inspection import test_fuzz as made
from tests.core.trace.perfetto_writer import PerfettoWriter
from tests.nsys_double import spoil

CPU_SECONDS, WALL_SECONDS = 30, 240
MAX_BYTES = 3 * 2**29
MAX_BASE_BYTES = 2**21
TOLERANCE_NS = 1.0
FORMS = ("inspect", "inspect --json")
OPTIONS: tuple[list[str], ...] = ([], ["--json"])
STREAMS = [f"{name}{number}" for number in range(len(FORMS)) for name in ("out", "err")]
SHARED = Path(os.environ.get("SYSBENCH_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
STYLES: tuple[dict[str, Any], ...] = (
    *({"layout": "blocks"}, {"layout": "pairs", "interned": False}),
    *({"layout": "sorted", "delta_clock": True}, {"layout": "sorted", "packed": True}),
)

Make = Callable[[random.Random], bytes]


class Ended(NamedTuple):
    """How one form of the command ended; the code is None if it did not end by itself."""

    code: int | None
    out: str
    err: str


class Used(NamedTuple):
    """What both forms took; ``bytes`` are the most of one process."""

    code: int
    cpu_seconds: float
    bytes: int


def inspect(path: Path, folder: Path) -> tuple[list[Ended], Used]:
    """Inspect a file in a process of its own, a fork of this one: imports would take a second."""
    for name in (*STREAMS, "codes"):
        (folder / name).write_text("")
    process = os.fork()
    if not process:
        try:
            codes = inspect_here(path, folder)
            (folder / "codes").write_text(json.dumps(codes))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    timer = Timer(WALL_SECONDS, os.kill, (process, signal.SIGKILL))  # its decoder follows it
    timer.start()
    _, status, used = os.wait4(process, 0)
    timer.cancel()
    texts = [(folder / name).read_bytes().decode("utf-8", "replace") for name in STREAMS]
    codes = json.loads((folder / "codes").read_text() or "[null, null]")
    cpu_seconds = used.ru_utime + used.ru_stime
    ended = list(map(Ended, codes, texts[::2], texts[1::2]))
    return ended, Used(os.waitstatus_to_exitcode(status), cpu_seconds, used.ru_maxrss * 1024)


def inspect_here(path: Path, folder: Path) -> list[Any]:
    """Return the exit codes of both forms, run in this process; its decoder is a fork, too."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    os.environ |= {"SYSBENCH_HOME": str(folder / "home"), "COLUMNS": "100"}
    decoding.start_decoder = start_forked_decoder
    codes: list[Any] = []
    for number, options in enumerate(OPTIONS):
        for descriptor, name in ((1, "out"), (2, "err")):
            stream = (folder / f"{name}{number}").open("w")
            os.dup2(stream.fileno(), descriptor)
            setattr(sys, f"std{name}", stream)
        try:
            codes.append(cli.main(["inspect", str(path), *options]))
        except SystemExit as end:
            codes.append(end.code)
        sys.stdout.flush()
        sys.stderr.flush()
    return codes


def start_forked_decoder(
    module: str, *arguments: str, log: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    def decode() -> NoReturn:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as exec does; it also ends `Popen`'s wait
        try:
            os._exit(import_module(f"{module}.__main__").main(*arguments))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    return subprocess.Popen(
        [sys.executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        preexec_fn=decode,
    )


def faults(path: Path, folder: Path) -> Iterator[str]:
    """Yield what is wrong with the way in which an input is inspected."""
    both, used = inspect(path, folder)
    if used.code:
        yield f"the process ends with {used.code}: {both[0].err[-500:]}{both[1].err[-500:]}"
    if used.cpu_seconds > CPU_SECONDS:
        yield f"it takes {used.cpu_seconds:.0f} s of processor time"
    if used.bytes > MAX_BYTES:
        yield f"it takes {used.bytes / 2**20:.0f} MiB"
    for name, ended in zip(FORMS, both, strict=True):
        if ended.code not in (0, 2):
            yield f"{name} ends with {ended.code}: {ended.err[-500:]}"
        if "Traceback" in ended.out + ended.err:
            yield f"{name} prints a traceback: {ended.err[-500:]}"
        if control := set(filter(is_control, ended.out + ended.err)):
            yield f"{name} prints {', '.join(map(repr, sorted(control)))}"
        if ended.code == 2 and (ended.out or not ended.err.strip()):
            yield f"{name} is refused with {ended.out[:100]!r} and {ended.err[:100]!r}"
    shown, stored = both
    if shown.code != stored.code:
        yield f"inspect ends with {shown.code}, and with --json {stored.code}"
    if stored.code == 0:
        try:
            document = json.loads(stored.out, parse_constant=refuse_constant)
        except ValueError as error:
            yield f"its JSON is invalid: {error}"
        else:
            yield from broken_sums(document)


def is_control(character: str) -> bool:
    return character not in "\n" and unicodedata.category(character) in ("Cc", "Cs")


def refuse_constant(name: str) -> None:
    raise ValueError(f"it has {name}")


def broken_sums(document: dict[str, Any]) -> Iterator[str]:
    if kernels := document["kernels"]:
        rows = fsum(row["exclusive_ns"] for row in kernels["rows"])
        idle = fsum(row["ns"] for row in kernels["idle"])
        span = kernels["step_ms"] * 1e6
        yield from differ(
            "rows + idle + unattributed", rows + idle + kernels["unattributed_ns"], span
        )
        categories = fsum(row["exclusive_ns"] for row in kernels["categories"])
        yield from differ("categories", categories, rows)
        if phases := kernels["phases_ns"]:
            yield from differ("phases", fsum(phases.values()), span)
        for step in (kernels["marked_steps"] or {"rows": []})["rows"]:
            within = step["busy_ns"] + sum(step["idle"].values()) + step["unattributed_ns"]
            yield from differ(f"parts of {step['name'][:40]}", within, step["ns"])
    if memory := document["memory"]:
        ledger = sum(row["bytes"] for row in memory["ledger"])
        yield from differ("ledger", ledger, memory["peak_allocated_bytes"], tolerance=0)


def differ(
    what: str, found: float, expected: float, tolerance: float = TOLERANCE_NS
) -> Iterator[str]:
    if not isclose(found, expected, rel_tol=1e-9 if tolerance else 0, abs_tol=tolerance):
        yield f"{what}: {found:,.0f}, not {expected:,.0f}"


def bases(folder: Path, data: Path) -> dict[str, Make]:
    """What makes a damaged input of each kind, from made files and those below ``data``, if any."""
    chromes: list[Path] = []
    for number, on_device in enumerate((False, True)):
        chromes.append(folder / f"made{number}.json")
        chromes[-1].write_text(json.dumps(made.trace(on_device=on_device)))
    real = [path for path in sorted(data.glob("*/*.gz")) if path.stat().st_size < 2**17]
    for path in real:
        plain = gzip.decompress(path.read_bytes())
        if plain[:1] in b"{[" and len(plain) < MAX_BASE_BYTES:
            chromes.append(folder / path.name.removesuffix(".gz"))
            chromes[-1].write_bytes(plain)
    exports = [spoil.sound_export(folder / "made.sqlite"), *sorted(data.glob("*/mock.sqlite"))]
    perfetto: dict[tuple[Path, int], bytes] = {}

    def perfetto_of(chance: random.Random) -> bytes:
        key = (chance.choice(chromes), chance.randrange(len(STYLES)))
        if key not in perfetto:
            out = folder / "base.pftrace"
            perfetto[key] = PerfettoWriter(**STYLES[key[1]]).write(key[0], out).read_bytes()
        return perfetto[key]

    def packed(chance: random.Random, data: bytes) -> bytes:
        return gzip.compress(data, 1) if chance.random() < 0.2 else data

    def values_of_trace(chance: random.Random) -> bytes:
        document = json.loads(chance.choice(chromes).read_bytes())
        return packed(chance, json.dumps(made.with_wrong_values(chance, document)).encode())

    def values_of_perfetto(chance: random.Random) -> bytes:
        source = folder / "values.json"
        document = made.with_wrong_values(chance, made.trace(on_device=chance.random() < 0.5))
        source.write_text(json.dumps(document))
        writer = PerfettoWriter(**chance.choice(STYLES))
        with suppress(ArithmeticError, AttributeError, TypeError, ValueError):
            return writer.write(source, folder / "values.pftrace").read_bytes()
        return writer.encoded()  # what was written before the value that has no such form

    def export(chance: random.Random) -> bytes:
        path = folder / "damaged.sqlite"
        path.write_bytes(chance.choice(exports).read_bytes())
        for _ in range(chance.randrange(1, 4)):
            with suppress(Exception):  # what an earlier change broke cannot be changed again
                chance.choice((spoil.change_values, spoil.change_schema))(chance, path)
        return path.read_bytes()

    def bytes_of(source: Make) -> Make:
        return lambda chance: packed(chance, made.with_wrong_bytes(chance, source(chance)))

    def snapshot(chance: random.Random) -> bytes:
        return pickle.dumps(made.with_wrong_values(chance, made.snapshot()), protocol=4)

    return {
        "values of a trace": values_of_trace,
        "bytes of a trace": bytes_of(lambda chance: chance.choice(chromes).read_bytes()),
        "values of a Perfetto trace": values_of_perfetto,
        "bytes of a Perfetto trace": bytes_of(perfetto_of),
        "values of a snapshot": snapshot,
        "bytes of a snapshot": bytes_of(lambda _: pickle.dumps(made.snapshot(), protocol=4)),
        "values of an export": export,
        "bytes of an export": bytes_of(lambda chance: chance.choice(exports).read_bytes()),
    }


def fuzz(
    count: int, seed: int, kept: Path, data: Path = SHARED, say: Callable[[str], None] = print
) -> int:
    """Inspect that many inputs; return the number of those that fail, which are kept."""
    chance = random.Random(seed)
    seen, failed = Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = bases(folder, data)
        for number in range(count):
            kind = list(kinds)[number % len(kinds)]
            path = folder / f"input{number}"
            path.write_bytes(kinds[kind](chance))
            seen[kind] += 1
            wrong = list(faults(path, folder))
            if wrong:
                failed += 1
                kept.mkdir(parents=True, exist_ok=True)
                copy = kept / f"seed{seed}-{number}"
                copy.write_bytes(path.read_bytes())
                for text in wrong:
                    say(f"{copy} ({kind}): {text}")
            path.unlink()
    for kind, inputs in seen.items():
        say(f"{inputs:6,}  {kind}")
    say(f"{count:,} inputs, {failed:,} with a fault; seed {seed}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--kept", type=Path, default=Path("build") / "fuzz")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of real files")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    return 1 if fuzz(arguments.count, arguments.seed, arguments.kept, arguments.data) else 0


if __name__ == "__main__":
    sys.exit(main())
