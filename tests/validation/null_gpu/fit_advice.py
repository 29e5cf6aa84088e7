"""The advice of ``estimate --exact --fit``, run: 12 specs, with and without expandable segments,
and 8 steps that serve.

``python -m tests.validation.null_gpu.fit_advice`` asks on a null GPU of each case's kind (see
`tests/null_gpu`) what fits, runs the advised value, one that may fit and the first that is sure
not to, each in a memory pass of the program, and puts the table into ``null-gpu.md``. What was
run before is in ``fit_advice.csv`` and is not run again; ``--again`` forgets it, ``--ask`` asks
again and runs only values that it has not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.validation.null_gpu.page import null_gpu, read_table, replace_part, write_table

ROWS = Path(__file__).with_name("fit_advice.csv")
EXPANDABLE = "expandable_segments:True"
ALLOCATORS = ("", EXPANDABLE)
FINISHED, OUT = "finished", "oom"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A question: the largest batch or context of a spec on a card.

    Attributes:
        card: As `NULL_GPU_CARD` has it.
        key: What is asked for; the other one of both is ``other``.
        quoted: Memory as it is quoted, asked for with ``--capacity`` as if the card were
            elsewhere; empty: the card itself is asked.
    """

    card: str
    model: str
    key: str
    other: int
    step: str = "train"
    precision: str = "fp32"
    attention: str = "naive"
    quoted: str = ""

    @property
    def serves(self) -> bool:
        return self.step in ("prefill", "decode")

    @property
    def question(self) -> str:
        """The word behind ``--fit``."""
        return "sequences" if self.serves and self.key == "batch" else self.key

    @property
    def settings(self) -> list[str]:
        """Options of the program that name the spec, but for the key."""
        other = "context" if self.key == "batch" else "batch"
        pairs = {
            "device": "cuda",
            "model": f"cs336-2025/{self.model}",
            other: self.other,
            "step": self.step,
            "precision": self.precision,
            "attention": self.attention,
        }
        return [word for name, value in pairs.items() for word in ("--set", f"{name}={value}")]


CASES = (
    Case(card="h100", model="2.7B", key="context", other=4),
    Case(card="h100", model="2.7B", key="context", other=4, precision="bf16"),
    Case(card="h100", model="2.7B", key="batch", other=512, attention="sdpa"),
    Case(card="h100", model="xl", key="context", other=2, precision="bf16-pure"),
    Case(card="h100", model="xl", key="batch", other=256, quoted="81559MiB"),
    Case(card="h100", model="large", key="context", other=8, step="forward", precision="tf32"),
    Case(card="a100", model="large", key="context", other=4),
    Case(card="a100", model="large", key="batch", other=512, precision="bf16", attention="sdpa"),
    Case(card="a100", model="medium", key="batch", other=1024, step="forward+backward"),
    Case(card="a100", model="xl", key="context", other=1, step="inference", quoted="40960MiB"),
    Case(card="rtx4090", model="small", key="context", other=8, precision="bf16"),
    Case(card="rtx4090", model="medium", key="batch", other=512, attention="sdpa-math"),
    *(
        Case(card=card, model=model, key=key, other=other, step=step, precision=precision)
        for card, model, key, other, step, precision in (
            ("h100", "2.7B", "batch", 2048, "decode", "bf16-pure"),
            ("h100", "xl", "batch", 8192, "decode", "bf16-pure"),
            ("h100", "large", "context", 16, "decode", "fp32"),
            ("a100", "medium", "batch", 4096, "decode", "bf16"),
            ("a100", "xl", "context", 8, "decode", "bf16-pure"),
            ("rtx4090", "small", "batch", 1024, "decode", "fp16"),
            ("rtx4090", "large", "batch", 512, "prefill", "bf16-pure"),
            ("a100", "2.7B", "batch", 1024, "prefill", "tf32"),
        )
    ),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A case under one setting of the allocator: the advice, and how three values ended.

    Attributes:
        case: Its number, from 1.
        may: A value that may fit; 0 where there is none between advice and beyond.
    """

    case: int
    allocator: str
    advised: int
    may: int
    beyond: int
    advised_outcome: str
    may_outcome: str
    beyond_outcome: str
    torch: str

    @property
    def outcomes(self) -> dict[int, str]:
        """How each value ended."""
        ends = (self.advised_outcome, self.may_outcome, self.beyond_outcome)
        values = (self.advised, self.may, self.beyond)
        return {value: end for value, end in zip(values, ends, strict=True) if value}

    @property
    def holds(self) -> bool:
        """Whether the advised value finished and the one beyond ran out of memory."""
        return (self.advised_outcome, self.beyond_outcome) == (FINISHED, OUT)


def read_rows() -> list[Row]:
    """What was run before."""
    if not ROWS.exists():
        return []
    return read_table(ROWS, Row)


def run_case(number: int, allocator: str, known: Row | None = None) -> Row:
    """Ask, and run what was answered, but for values whose end is known."""
    case = CASES[number - 1]
    with null_gpu(card=case.card) as (python, environment):
        environment["PYTORCH_ALLOC_CONF"] = allocator
        program = [python, "-P", "-m", "sysbench.tui.cli"]
        quoted = ["--capacity", case.quoted] if case.quoted else []
        question = [*case.settings, "--exact", "--fit", case.question, *quoted, "--json"]
        advice = _answer([*program, "estimate", *question], environment)
        advised, beyond = advice["largest"], advice["beyond"]
        may = (advised + beyond) // 2
        torch, outcomes = "", {}
        if known is not None:
            torch, outcomes = known.torch, known.outcomes
        for value in sorted({advised, may, beyond} - outcomes.keys()):
            options = ["--json", "--passes", "memory", "--set", f"{case.key}={value}"]
            record = _answer([*program, "run", *case.settings, *options], environment)
            outcomes[value] = record["passes"][0]["outcome"]
            torch = record["environment"]["torch"]["version"]
    is_between = advised < may < beyond
    return Row(
        case=number,
        allocator=allocator,
        advised=advised,
        may=may if is_between else 0,
        beyond=beyond,
        advised_outcome=outcomes[advised],
        may_outcome=outcomes[may] if is_between else "",
        beyond_outcome=outcomes[beyond],
        torch=torch,
    )


def _answer(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What the program prints; a run that runs out of memory ends with 1 and has a record."""
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def lines(rows: list[Row]) -> Iterator[str]:
    """The table, and what it comes to."""
    heads = ("card", "spec", "asked for", "allocator")
    yield f"| {' | '.join(heads)} | advised | it | may fit | it | sure not to fit | it | |"
    yield "|---|---|---|---|---:|---|---:|---|---:|---|---|"
    words = {FINISHED: "finishes", OUT: "out of memory"}
    for row in rows:
        case = CASES[row.case - 1]
        other = f"{'context' if case.key == 'batch' else 'batch'} {case.other}"
        spec = f"{case.model}, {case.step}, {case.precision}, {case.attention}, {other}"
        card = f"{case.card}, quoted {case.quoted}" if case.quoted else case.card
        cells = [
            *(card, spec, case.key, "expandable" if row.allocator else "default"),
            *(row.advised, words.get(row.advised_outcome, row.advised_outcome)),
            *(row.may or "", words.get(row.may_outcome, row.may_outcome)),
            *(row.beyond, words.get(row.beyond_outcome, row.beyond_outcome)),
            "" if row.holds else "does not hold",
        ]
        yield f"| {' | '.join(map(str, cells))} |"
    held = sum(row.holds for row in rows)
    may = [row.may_outcome for row in rows if row.may]
    yield ""
    yield (
        f"{held} of {len(rows)} pieces of advice hold: the advised value finishes, the first that "
        f"is sure not to fit runs out of memory. Of the values half-way between, {len(may)}, "
        f"{may.count(FINISHED)} finish. torch {', '.join(sorted({row.torch for row in rows}))}."
    )


def main() -> int:
    """Run what is missing and write the table; 1 if a piece of advice does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="forget what was run before")
    parser.add_argument("--ask", action="store_true", help="ask again, for other advice")
    arguments = parser.parse_args()
    known = {} if arguments.again else {(row.case, row.allocator): row for row in read_rows()}
    for number in range(1, len(CASES) + 1):
        for allocator in ALLOCATORS[: 1 if CASES[number - 1].serves else 2]:
            key = number, allocator
            if key not in known or arguments.ask:
                known[key] = run_case(number, allocator, known.get(key))
                write_table(ROWS, [known[key] for key in sorted(known)])
                print(*msgspec.to_builtins(known[key]).values(), flush=True)
    rows = [known[key] for key in sorted(known)]
    table = list(lines(rows))
    replace_part("fit", table)
    print("\n".join(table))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
