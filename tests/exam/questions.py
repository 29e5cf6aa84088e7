"""Questions on files of the repository, each with its answer and the commands that find it.

Answers come from the files by other means than the program, or from what wrote them: ``how`` says
which. `None` is the answer to a question that the file cannot answer.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from tests.exam.desk import AFTER, BEFORE, BLOCKS, COPY, FIXTURES, GEMM, LAUNCHES, RUN_A, RUN_B

Answer = float | str | frozenset[str] | None
Document = dict[str, Any]
TRUTH = json.loads((FIXTURES / "ranks" / "truth.txt").read_text())
"""What the script that wrote the folder of ranks did: a rank that sleeps, and shifted clocks."""
PARAMETERS = 2 * 1024 * 128 + 2 * (4 * 128**2 + 3 * 128 * 512 + 2 * 128) + 128
"""Embedding and head, two blocks of attention, SwiGLU and two norms, and the last norm."""
TENSORS = 3 + 2 * (4 + 3 + 2)


class Question(NamedTuple):
    """A question, its answer, and how a command answers it.

    Attributes:
        how: Where the answer comes from.
        answer: A number, a name, a set of names, or None if the file cannot answer.
        command: What we ask, with ``--json``.
        find: Takes the answer from the command's document.
        tolerance: Of a number, as a share of it.
    """

    name: str
    text: str
    how: str
    answer: Callable[[], Answer]
    command: str
    find: Callable[[Document], Answer]
    tolerance: float = 0.0


@cache
def events(kind: str) -> list[dict[str, Any]]:
    lines = (FIXTURES / "tiny-cpu" / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == kind]


def phase_median(phase: str) -> float:
    timed = events("StepsTimed")
    if phase == "step":
        return float(statistics.median(ms for one in timed for ms in one["step_ms"]))
    return float(statistics.median(ms for one in timed for ms in one["phases_ms"][phase]))


def ledger() -> dict[str, int]:
    blocks = {one["block"]: one["data"] for one in events("ResultReported")}
    return {row["name"]: row["bytes"] for row in blocks["memory"]["ledger"]}


@cache
def spans(rank: int) -> list[dict[str, Any]]:
    with gzip.open(FIXTURES / "ranks" / f"rank{rank}.json.gz") as file:
        return [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]


def marked_steps(rank: int) -> dict[str, float]:
    named = ((one["name"], one["dur"]) for one in spans(rank))
    return {name.partition("#")[2]: us for name, us in named if name.startswith("ProfilerStep#")}


def self_times(rank: int) -> Counter[str]:
    """Duration of each operator without the operators inside it, µs."""
    times: Counter[str] = Counter()
    operators = [one for one in spans(rank) if one["cat"] == "cpu_op"]
    for one in operators:
        times[one["name"]] += one["dur"]
        around = [
            other
            for other in operators
            if other is not one
            and other["tid"] == one["tid"]
            and other["ts"] <= one["ts"]
            and one["ts"] + one["dur"] <= other["ts"] + other["dur"]
        ]
        if around:
            times[min(around, key=lambda other: other["dur"])["name"]] -= one["dur"]
    return times


def rows(document: Document, table: str) -> list[dict[str, Any]]:
    return list(document["tables"][table]["rows"])


def row(document: Document, table: str, column: str, value: object) -> dict[str, Any]:
    return next(one for one in rows(document, table) if one[column] == value)


def true_ms(key: str, rank: int) -> Answer:
    return float(TRUTH[key][rank] / 1e6)


def ms_of_rank(column: str, rank: int, document: Document) -> Answer:
    return float(row(document, "ranks", "rank", rank)[column] / 1e6)


def unanswered(document: Document) -> Answer:
    return None if "cannot_answer" in document else "answered"


def undecided(document: Document) -> Answer:
    word = document["numbers"]["verdict"]
    return None if word == "not decidable" else str(word)


def largest(listed: list[dict[str, Any]], amount: str, name: str = "name") -> Any:
    return max(listed, key=lambda one: one[amount])[name]


def of_run() -> Iterator[Question]:
    timing = f"show {RUN_A} --section timing --fields phase,median_ms,n,quantity,value"
    raw, brief = "from the raw samples in events.jsonl", f"show {RUN_A} --brief"
    yield Question(
        "step-median",
        "What is the median of the timed steps, in ms?",
        raw,
        lambda: phase_median("step"),
        timing,
        lambda found: float(row(found, "timing", "phase", "step")["median_ms"]),
        1e-6,
    )
    yield Question(
        "timed-steps",
        "How many steps were timed after the warm-up?",
        raw,
        lambda: sum(len(one["step_ms"]) for one in events("StepsTimed")),
        timing,
        lambda found: float(row(found, "timing", "phase", "step")["n"]),
    )
    yield Question(
        "longest-phase",
        "Which phase of the step is the longest?",
        raw,
        lambda: max(events("StepsTimed")[0]["phases_ms"], key=phase_median),
        brief,
        lambda found: str(largest(found["step"], "share")),
    )
    yield Question(
        "backward-share",
        "Which share of the median step is the median backward?",
        raw,
        lambda: phase_median("backward") / phase_median("step"),
        brief,
        lambda found: float(next(p["share"] for p in found["step"] if p["name"] == "backward")),
        1e-3,
    )
    yield Question(
        "tokens",
        "How many tokens a second does the median step train?",
        "batch 4 times context 128 over the median of the raw samples",
        lambda: 4 * 128 / (phase_median("step") / 1e3),
        timing,
        lambda found: float(row(found, "speed", "quantity", "tokens_per_second")["value"]),
        1e-3,
    )
    yield Question(
        "parameter-bytes",
        "How many bytes do the parameters hold at the peak?",
        "4 bytes for each parameter of the model, counted by hand",
        lambda: 4 * PARAMETERS,
        f"show {RUN_A} --row ledger:parameters",
        lambda found: float(found["row"]["peak_bytes"]),
    )
    yield Question(
        "optimizer-bytes",
        "How many bytes does the state of AdamW hold at the peak?",
        "two moments for each parameter and a counter of 4 bytes for each tensor, by hand",
        lambda: 8 * PARAMETERS + 4 * TENSORS,
        f"show {RUN_A} --section memory --fields name,peak_bytes",
        lambda found: float(row(found, "ledger", "name", "optimizer state")["peak_bytes"]),
    )
    yield Question(
        "peak-bytes",
        "How many bytes were allocated at the peak?",
        "sum of the ledger that the worker reported in events.jsonl",
        lambda: sum(ledger().values()),
        f"show {RUN_A} --row card:allocated",
        lambda found: float(found["row"]["bytes"]),
    )
    yield Question(
        "largest-holder",
        "What holds most of the memory at the peak?",
        "from the ledger in events.jsonl",
        lambda: max(ledger(), key=lambda name: ledger()[name]),
        brief,
        lambda found: str(next(p["name"] for p in found["memory"] if p["name"] != "free")),
    )
    yield Question(
        "torch",
        "Which version of torch ran it?",
        "from the worker's facts in events.jsonl",
        lambda: str(events("DeviceDescribed")[0]["facts"]["torch"]["version"]),
        f"show {RUN_A} --section environment --fields quantity,value",
        lambda found: str(row(found, "environment", "quantity", "torch.version")["value"]),
    )
    for block, text in (
        ("nsys", "How long did the kernels take that Nsight Systems saw, in ms?"),
        ("compile", "How many seconds did torch.compile take?"),
    ):
        yield Question(
            f"no-{block}",
            text,
            "the passes in events.jsonl are timing, trace and memory, and compile is off",
            lambda: None,
            f"show {RUN_A} --section {block}",
            unanswered,
        )
    yield Question(
        "no-verdict",
        f"By how much is {RUN_B} faster than {RUN_A}, as a share?",
        "one process each says nothing on the variation between processes",
        lambda: None,
        f"compare {RUN_A} {RUN_B} --brief",
        undecided,
    )


def of_ranks() -> Iterator[Question]:
    script = "from truth.txt, which the script that wrote the folder left"
    brief = "inspect ranks --brief"
    ranks = "inspect ranks --section ranks --fields rank,clock_ahead_ns,waiting_ns"
    yield Question(
        "straggler",
        "Which rank do the others wait for? Its number.",
        script,
        lambda: TRUTH["late"],
        brief,
        lambda found: float(found["findings"][0]["numbers"]["rank"]),
    )
    yield Question(
        "late",
        "For how long do the others wait for the straggler, in ms, over all steps?",
        script,
        lambda: TRUTH["sleep_ms"],
        brief,
        lambda found: found["findings"][0]["numbers"]["late_ns"] / 1e6,
        0.03,
    )
    for rank in (1, 2):
        yield Question(
            f"clock-{rank}",
            f"By how many ms is the clock of rank {rank} ahead of that of rank 0?",
            script,
            partial(true_ms, "skew_ns", rank),
            ranks,
            partial(ms_of_rank, "clock_ahead_ns", rank),
            0.03,
        )
    for rank in (0, 2):
        yield Question(
            f"waiting-{rank}",
            f"For how long does rank {rank} wait for other ranks, in ms, over all steps?",
            script,
            partial(true_ms, "waiting_ns", rank),
            ranks,
            partial(ms_of_rank, "waiting_ns", rank),
            0.03,
        )
    yield Question(
        "longest-step",
        "Which marked step of rank 1 is the longest? Its number.",
        "from the ProfilerStep events of rank1.json.gz",
        lambda: float(max(marked_steps(1), key=lambda name: marked_steps(1)[name])),
        "inspect ranks --section steps --fields step,rank,ns",
        lambda found: float(
            largest([one for one in rows(found, "steps") if one["rank"] == 1], "ns", "step")
        ),
    )
    yield Question(
        "no-rank-memory",
        "How many bytes does rank 1 hold at its peak?",
        "no file of the folder has memory events",
        lambda: None,
        "inspect ranks --section memory",
        unanswered,
    )


def of_rank_zero() -> Iterator[Question]:
    file = "inspect ranks/rank0.json.gz"
    kernels = f"{file} --section kernels --fields name,calls,exclusive_ns"
    nested = "durations in ranks/rank0.json.gz without those of operators inside them"
    yield Question(
        "second-step",
        "How long is marked step 2, in ms?",
        "from the ProfilerStep events of ranks/rank0.json.gz",
        lambda: marked_steps(0)["2"] / 1e3,
        f"{file} --section steps",
        lambda found: next(one["ns"] for one in found["rows"] if one["number"] == 2) / 1e6,
        1e-4,
    )
    yield Question(
        "mm-calls",
        "How often was aten::mm called?",
        "events of that name in ranks/rank0.json.gz",
        lambda: sum(one["name"] == "aten::mm" for one in spans(0)),
        kernels,
        lambda found: float(row(found, "kernels", "name", "aten::mm")["calls"]),
    )
    yield Question(
        "mm-time",
        "How long did aten::mm take without the operators that it calls, in µs?",
        nested,
        lambda: self_times(0)["aten::mm"],
        kernels,
        lambda found: row(found, "kernels", "name", "aten::mm")["exclusive_ns"] / 1e3,
        1e-3,
    )
    yield Question(
        "longest-operator",
        "Which operator takes the most time without the operators that it calls?",
        nested,
        lambda: self_times(0).most_common(1)[0][0],
        kernels,
        lambda found: str(rows(found, "kernels")[0]["name"]),
    )
    yield Question(
        "no-trace-memory",
        "How many bytes were allocated at the peak of rank 0?",
        "the trace has no memory events",
        lambda: None,
        f"{file} --section memory",
        unanswered,
    )


def of_gpu_traces() -> Iterator[Question]:
    written = "the durations that the writer of the trace was given"
    busy = [sum(us for _, us in step) for step in BEFORE]
    kernels = "inspect before.json --section kernels --fields name,total_ns,calls"
    compared = "compare before.json after.json --brief"
    yield Question(
        "gpu-time",
        "How long do the GPU kernels of before.json take together, in µs?",
        written,
        lambda: sum(busy),
        kernels,
        lambda found: sum(one["total_ns"] or 0 for one in rows(found, "kernels")) / 1e3,
        1e-6,
    )
    yield Question(
        "gemm-calls",
        f"How often does {GEMM} run in before.json?",
        written,
        lambda: len(BEFORE),
        kernels,
        lambda found: float(row(found, "kernels", "name", GEMM)["calls"]),
    )
    yield Question(
        "busiest-step",
        "In which marked step of before.json is the GPU busy for the longest time? Its number.",
        written,
        lambda: busy.index(max(busy)),
        "inspect before.json --section steps",
        lambda found: float(largest(found["rows"], "busy_ns", "number")),
    )
    yield Question(
        "new-kernel",
        "Which kernel does after.json have that before.json has not?",
        written,
        lambda: {name for name, _ in AFTER[0]}.difference(name for name, _ in BEFORE[0]).pop(),
        compared,
        lambda found: str(
            [one["row"] for one in found["tables"]["time-difference"] if one["state"] == "new"][-1]
        ).strip(),
    )
    yield Question(
        "busy-change",
        "By how many µs a step does the busy time of the GPU grow from before.json to after.json?",
        written,
        lambda: dict(AFTER[0])[COPY],
        compared,
        lambda found: found["tables"]["step-medians"][0]["change_busy_ns"] / 1e3,
        1e-6,
    )
    yield Question(
        "no-file-verdict",
        "By how much is the training step of after.json slower without a profiler, as a share?",
        "a trace has no steps without a profiler",
        lambda: None,
        compared,
        undecided,
    )


def of_other_files() -> Iterator[Question]:
    blocks = "the blocks that the writer of the snapshot was given"
    memory = "inspect snapshot.pickle --section memory --fields stack,bytes,blocks"
    kernels = "inspect export.sqlite --section kernels --fields name,total_ns"
    yield Question(
        "snapshot-peak",
        "How many bytes are held at the peak of snapshot.pickle?",
        blocks,
        lambda: sum(size for size, _ in BLOCKS),
        memory,
        lambda found: float(sum(one["bytes"] for one in rows(found, "origins"))),
    )
    yield Question(
        "snapshot-holder",
        "Which function allocated most of what snapshot.pickle holds at the peak?",
        blocks,
        lambda: max(BLOCKS)[1][0][2],
        memory,
        lambda found: str(largest(rows(found, "origins"), "bytes", "stack")).split()[-1],
    )
    yield Question(
        "snapshot-functions",
        "Which functions allocated what snapshot.pickle holds at the peak?",
        blocks,
        lambda: frozenset(stack[0][2] for _, stack in BLOCKS),
        memory,
        lambda found: frozenset(one["stack"].split()[-1] for one in rows(found, "origins")),
    )
    yield Question(
        "no-snapshot-kernels",
        "Which kernel of snapshot.pickle takes the most time?",
        "a snapshot has no kernels",
        lambda: None,
        "inspect snapshot.pickle --section kernels",
        unanswered,
    )
    yield Question(
        "nsys-gemm",
        "How long do the gemm kernels of export.sqlite take together, in µs?",
        "the kernels that the writer of the export was given",
        lambda: sum(end - start for name, start, end in LAUNCHES if name.startswith("gemm")),
        kernels,
        lambda found: (
            sum(one["total_ns"] for one in rows(found, "kernels") if "gemm" in one["name"]) / 1e3
        ),
        1e-6,
    )
    yield Question(
        "nsys-idle",
        "Which share of the span of export.sqlite is the GPU idle, from its first kernel to its "
        "last?",
        "the gaps between the kernels that the writer of the export was given",
        lambda: 1 - sum(end - at for _, at, end in LAUNCHES) / (LAUNCHES[-1][2] - LAUNCHES[0][1]),
        "inspect export.sqlite --brief",
        lambda found: float(next(p["share"] for p in found["step"] if p["name"] == "idle")),
        1e-3,
    )
    yield Question(
        "no-nsys-memory",
        "How many bytes were allocated at the peak of export.sqlite?",
        "an export has no events of the allocator",
        lambda: None,
        "inspect export.sqlite --section memory",
        unanswered,
    )
    yield Question(
        "spec-parameters",
        "How many parameters has the model of base.toml?",
        "counted by hand from its dimensions",
        lambda: PARAMETERS,
        "estimate base.toml --brief",
        lambda found: float(found["numbers"]["parameters"]),
    )
    yield Question(
        "spec-fits",
        "Does a training step of base.toml fit in 8 MiB? yes or no",
        "parameters and two moments of AdamW alone are 12 bytes a parameter: 9.4 MB",
        lambda: "no" if 12 * PARAMETERS > 8 * 2**20 else "yes",
        "estimate base.toml --capacity 8MiB --brief",
        lambda found: "yes" if found["numbers"]["fits"] else "no",
    )


SUBJECTS = {
    f"The stored run {RUN_A}": of_run,
    "The folder of traces ranks": of_ranks,
    "The trace ranks/rank0.json.gz": of_rank_zero,
    "The traces before.json and after.json": of_gpu_traces,
    "The files snapshot.pickle, export.sqlite and base.toml": of_other_files,
}
QUESTIONS = [
    one._replace(text=f"{subject}. {one.text}")
    for subject, questions in SUBJECTS.items()
    for one in questions()
]


def is_right(question: Question, given: object) -> bool:
    """Whether an answer as read from JSON is right; a set of names is a list in any order."""
    right = question.answer()
    if isinstance(right, frozenset):
        return isinstance(given, list | frozenset | set) and frozenset(map(str, given)) == right
    if isinstance(right, str):
        return isinstance(given, str) and given.strip().lower() == right.lower()
    if right is None:
        return given is None
    if not isinstance(given, int | float) or isinstance(given, bool):
        return False
    return abs(given - right) <= question.tolerance * abs(right)
