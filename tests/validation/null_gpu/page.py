"""What the scripts of ``null-gpu.md`` share: processes that see a null GPU, and the page itself.

Each script makes the part of the page between its markers, with ``--write``.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sysbench.core.storage import HOME_VARIABLE
from tests.null_gpu.place import VARIABLE, place

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "validation" / "null-gpu.md"
DISTURBING = ("CUDA_", "CUBLAS", "NVML_STUB_", "NULL_GPU_", "LD_LIBRARY_PATH", "PYTORCH_")
"""Begin of the names of variables that change what a run on a null GPU holds."""

Row = TypeVar("Row", bound=msgspec.Struct)


@contextmanager
def null_gpu(**settings: object) -> Iterator[tuple[str, dict[str, str]]]:
    """An interpreter with a CUDA build of torch, and the variables by which it sees a null GPU.

    The processes have a data folder, and a board of NVML, that nobody else sees.

    Args:
        settings: As `Place.environment` takes them; durations are a thousandth of a card's.
    """
    where = place()
    if not where.is_built:
        raise SystemExit(f"no null GPU in {where.folder}: `make null-gpu`, or set {VARIABLE}")
    board = f"null-gpu-page-{os.getpid()}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DISTURBING)}
    with tempfile.TemporaryDirectory(prefix="null-gpu-page-") as home:
        try:
            yield (
                str(where.python),
                {
                    **kept,
                    **where.environment(**{"pace": 0.001, "board": board} | settings),
                    HOME_VARIABLE: home,
                    "OMP_NUM_THREADS": "1",
                    # This checkout, also where another one is installed.
                    "PYTHONPATH": str(ROOT / ".typing"),
                },
            )
        finally:
            Path("/dev/shm", board).unlink(missing_ok=True)


def read_table(file: Path, row: type[Row]) -> list[Row]:
    """The rows of a CSV file with a column a field."""
    with file.open() as text:
        return msgspec.convert(list(csv.DictReader(text)), list[row], strict=False)  # type: ignore[valid-type]


def write_table(file: Path, rows: Sequence[msgspec.Struct]) -> None:
    """Replace the file by these rows, of which there is at least one, at once."""
    values: list[dict[str, Any]] = [msgspec.to_builtins(row) for row in rows]
    partial = file.with_suffix(".part")
    with partial.open("w", newline="") as text:
        writer = csv.DictWriter(text, list(values[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(values)
    partial.replace(file)


def replace_part(name: str, lines: Iterable[str]) -> None:
    """Put the lines between the markers of that name in the page.

    Raises:
        ValueError: The page has no such markers.
    """
    text = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"{PAGE.name} has no markers of {name}")
    body = "".join(f"{line}\n" for line in lines)
    PAGE.write_text(f"{before}{begin}\n{body}\n{end}{after}")
