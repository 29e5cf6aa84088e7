"""Every study of the program on null GPUs, on one card and on two, to its end.

``python -m tests.validation.null_gpu.studies`` runs the variant ``small`` of each study on H100s of
`tests/null_gpu` and prints the table of ``null-gpu.md``, with ``--write`` it puts it there. A study
of several ranks needs a card for each: on one card it is refused before anything runs. A compiled
cell needs Triton there (``NULL_GPU_TRITON=1 make null-gpu``). Times mean nothing, and each table
has to say so.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

import msgspec

from sysbench.core.record.events import Outcome
from sysbench.core.storage import study_files
from sysbench.core.studies.schema import load_study
from tests.validation.null_gpu.page import ROOT, null_gpu, replace_part

CARDS = (1, 2)
REFUSED = "each rank has a CUDA device"
SMALL = ("--variant", "small", "--set", "device=cuda")
CHOSEN: dict[str, tuple[str, ...]] = {
    "all-reduce": ("--only", "backend=nccl, GPU", "--only", "ranks=2", "--set", "steps=10"),
}
"""Options of a study whose small variant is for CPUs only."""

ENDED = re.compile(rf"^({'|'.join(get_args(Outcome))}) ", re.M)
"""Line of the command on a cell that ended."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How the cells of a study on N cards ended.

    Attributes:
        ends: Cells by how they ended.
        is_refused: Whether it was refused because some rank had no card.
    """

    study: str
    cards: int
    ends: dict[str, int]
    is_refused: bool
    exit_code: int

    @property
    def words(self) -> str:
        """What the table says of it."""
        if self.is_refused:
            return "refused: a card for each rank"
        return ", ".join(f"{count} {end}" for end, count in self.ends.items()) or "nothing ran"

    @property
    def is_whole(self) -> bool:
        """Whether every cell has a value, or the refusal is right."""
        if self.is_refused:
            return self.cards == 1
        return self.exit_code == 0 and self.ends.keys() == {"finished"}


def run_study(name: str, cards: int) -> Ran:
    """Run a study on N null H100s in a home of its own."""
    with null_gpu(card="h100", count=cards) as (python, environment):
        done = subprocess.run(
            [python, "-P", "-m", "sysbench.tui.cli", "study", name, *CHOSEN.get(name, SMALL)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    ends = dict(Counter(ENDED.findall(done.stderr)))
    ran = Ran(
        study=name,
        cards=cards,
        ends=ends,
        is_refused=not ends and REFUSED in done.stdout,
        exit_code=done.returncode,
    )
    if not ran.is_whole:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return ran


def lines(all_ran: Iterable[Ran]) -> Iterator[str]:
    """The table, and what it comes to."""
    rows: dict[str, dict[int, Ran]] = {}
    for ran in all_ran:
        rows.setdefault(ran.study, {})[ran.cards] = ran
    yield "| study | passes | one H100 | two H100s | |"
    yield "|---|---|---|---|---|"
    for name, row in rows.items():
        cells = [row[cards].words for cards in CARDS]
        odd = "" if all(ran.is_whole for ran in row.values()) else "not whole"
        passes = ", ".join(load_study(name).passes)
        yield f"| {name} | {passes} | {' | '.join(cells)} | {odd} |"
    whole = sum(all(ran.is_whole for ran in row.values()) for row in rows.values())
    yield ""
    yield f"{whole} of {len(rows)} studies ran to their end, or were refused rightly."


def main() -> int:
    """Run them all and print the table; 1 if one is not whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into null-gpu.md")
    parser.add_argument("names", nargs="*", help="only these studies")
    arguments = parser.parse_args()
    all_ran = []
    for name in arguments.names or sorted(study_files()):
        for cards in CARDS:
            all_ran.append(run_study(name, cards))
            print(name, cards, all_ran[-1].words, all_ran[-1].exit_code, file=sys.stderr)
    table = list(lines(all_ran))
    if arguments.write:
        replace_part("studies", table)
    print("\n".join(table))
    return 0 if all(ran.is_whole for ran in all_ran) else 1


if __name__ == "__main__":
    sys.exit(main())
