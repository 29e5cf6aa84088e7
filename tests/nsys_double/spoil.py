"""Spoils exports, each time in another way, and reads them.

``python spoil.py FOLDER NUMBER SEED`` runs in a process of its own with a limit on memory. Prints
how many were read, how many refused, and each error that was of no type of ours.
"""

from __future__ import annotations

import json
import random
import resource
import runpy
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.tables.nsys_tables import record_tables
from sysbench.core.trace.nsys_export import read_export

MEMORY_BYTES = 512 * 2**20
PAGE_BYTES = 4096
HOSTILE_VALUES = (
    *("NULL", "'text'", "x'00ff'", "1.5", "1e300", "9e999", "-1", "0", "1"),
    *("9223372036854775807", "-9223372036854775808", "4611686018427387904", "zeroblob(10000)"),
)
HOSTILE_TEXTS = (
    *("''", "'[bold]x[/bold]'", "char(0, 27, 10)", "CAST(x'fffe80' AS TEXT)", "x'fffe80'"),
    *("replace(hex(zeroblob(2000)), '0', 'phase:')", "'phase:'", "'mod:'"),
    *("'sysbench:steps:999999'", "'sysbench:steps:0'", "'nn.Module: x'", "'a, seq = -1'"),
    "'aten::x, seq = 99999999999999999999999, op_id = '",
)
ENDLESS = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT * FROM n"

Spoil = Callable[[random.Random, Path], None]


def cut_off(chance: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def flip_bytes(chance: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 4, 64, 1000))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def confuse_pages(chance: random.Random, path: Path) -> None:
    """Pages in each other's places, or a page whose numbers all lead to one page: cycles."""
    data = bytearray(path.read_bytes())
    pages = len(data) // PAGE_BYTES
    for _ in range(chance.choice((1, 3))):
        one, two = (chance.randrange(1, pages) * PAGE_BYTES for _ in range(2))
        if chance.random() < 0.5:
            data[one : one + PAGE_BYTES] = data[two : two + PAGE_BYTES]
        else:
            number = chance.randrange(1, pages + 1).to_bytes(4, "big")
            head = bytes((5, 0, 0, 0, 200, 15, 0, 0)) + number
            data[one : one + 12] = head
            cells = b"".join((12 + 400 + 5 * (at % 600)).to_bytes(2, "big") for at in range(200))
            data[one + 12 : one + 12 + len(cells)] = cells
            for at in range(412, PAGE_BYTES - 5, 5):
                data[one + at : one + at + 5] = number + b"\x01"
    path.write_bytes(data)


def change_values(chance: random.Random, path: Path) -> None:
    with closing(opened(path)) as database:
        for _ in range(chance.choice((1, 5, 20))):
            table = chance.choice(tables_of(database))
            column = chance.choice(columns_of(database, table))
            values = HOSTILE_TEXTS if chance.random() < 0.3 else HOSTILE_VALUES
            some = f"WHERE rowid % {chance.choice((1, 2, 7))} = 0"
            with suppress(sqlite3.Error):
                database.execute(f"UPDATE {table} SET {column} = {chance.choice(values)} {some}")
        database.commit()


def change_schema(chance: random.Random, path: Path) -> None:
    with closing(opened(path)) as database:
        for _ in range(chance.choice((1, 3))):
            table = chance.choice(tables_of(database))
            column = chance.choice(columns_of(database, table))
            changes = (
                f"DROP TABLE {table}",
                f"ALTER TABLE {table} DROP COLUMN {column}",
                f"ALTER TABLE {table} RENAME COLUMN {column} TO other{chance.random()}",
                f"ALTER TABLE {table} RENAME TO gone; CREATE VIEW {table} AS {ENDLESS}",
                f"ALTER TABLE {table} DROP COLUMN {column}; "
                f"ALTER TABLE {table} ADD COLUMN {column} AS (hex(zeroblob(100000000)))",
                f"CREATE INDEX spoilt ON {table}({column}); DELETE FROM {table} WHERE rowid > 2",
                f"DROP TABLE {table}; CREATE VIRTUAL TABLE {table} USING fts4(start, end)",
            )
            with suppress(sqlite3.Error):
                database.executescript(chance.choice(changes))
        database.commit()


def opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = MEMORY")
    database.execute("PRAGMA synchronous = OFF")
    return database


def tables_of(database: sqlite3.Connection) -> list[str]:
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [name for (name,) in rows] or ["sqlite_master"]


def columns_of(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA table_info({table})")] or ["start"]


def sound_export(path: Path) -> Path:
    """Some of everything; types are not enforced, as a hostile maker would not."""
    build = runpy.run_path(str(Path(__file__).with_name("build.py")))
    build["SCHEMA"].update(
        {name: text.replace(" NOT NULL", "") for name, text in build["SCHEMA"].items()}
    )
    writer = build["ExportWriter"](path)
    writer.range("tool", 0, None, domain=3, kind=build["DOMAIN"])
    writer.range("sysbench:steps:2", 0, 100_000)
    for at in range(0, 100_000, 500):
        writer.range("phase:forward", at, at + 400)
        writer.range("mod:blocks.0", at + 10, at + 390, registered=True)
        writer.range(f"aten::mm, seq = {at}, op_id = {at}", at + 20, at + 380, domain=at % 2)
        writer.launch("void gemm<int>(int)", at + 30, at + 50, at + 250, device=at // 500 % 2)
        writer.launch("ncclDevKernel", at + 60, at + 200, at + 300, thread=build["AUTOGRAD"])
        writer.copy(at + 90, at + 310, at + 350)
    writer.graph(100_010, 100_020, 100_030)
    return Path(writer.write())


def main(folder: Path, number: int, seed: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, most))
    sound = sound_export(folder / "sound.sqlite").read_bytes()
    ways: tuple[Spoil, ...] = (cut_off, flip_bytes, confuse_pages, change_values, change_schema)
    counts: Counter[str] = Counter()
    untyped = []
    path = folder / "spoilt.sqlite"
    for case in range(number):
        path.write_bytes(sound)
        way = ways[case % len(ways)]
        way(random.Random(f"{seed} {case}"), path)
        try:
            export = read_export(path)
            record_tables(export.block())
            msgspec.json.encode(export)
            counts["read"] += 1
        except (DamagedFileError, NotFoundError):
            counts["refused"] += 1
        except Exception:
            untyped.append(f"{way.__name__}, case {case} of {seed}: {traceback.format_exc()}")
    print(json.dumps({**counts, "untyped": untyped}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
