"""Ten tasks of a user, played by keys in tmux at 80x24: the figures of docs/tasks.md.

``python -P docs/validation/measure_tasks.py --trace FILE -- sysbench-tui`` plays the tasks with
the program of that command; ``--keys before`` takes the keys that a program of before 22 November
2026 needs, so that an older checkout can be measured: ``-- env PYTHONPATH=OLD/.typing python -P -m
sysbench.tui.cli``. It needs tmux. Every program gets a data folder of its own.

Seconds are from the first key to the frame that has the answer, keys 0.15 s apart, or for a command
from Enter to the prompt. The answer is looked for after the last key, so a screen that had it
already counts for nothing. A task whose answer does not come is told so, with its screen.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

COLUMNS, ROWS = 80, 24
BETWEEN_KEYS = 0.15
LOOK = 0.05
"""Seconds between two looks at the screen."""
PATIENCE = 60.0
REPEATS = 2
SETTLE = 2.0
"""Seconds after the first frame in which no key is typed."""
SHELL = "env 'PS1=ready> ' bash --norc --noprofile"
PROMPTED = r"ready>\s*\Z"
"""The shell that commands are typed into, and its screen when nothing runs in it."""
NAMED = re.compile(r"Enter|Down|Up|Left|Right|Tab|Space|Escape|F\d+|C-[a-z]")
OPENED = "Predicted peak"
"""What the form has when it can be typed into."""
LIVE = "Step time"
"""What Live has."""
RESULT_OPEN = "1 Summary"
"""What a result has, and is shown when a run has ended."""
VERDICT = r"(?i)not decidable|not comparable|no difference|B is (faster|slower|the same)"

OWN_MODEL = """
import torch


def make(width: int = 64) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Embedding(256, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 256)
    )
"""


@dataclass(frozen=True)
class Part:
    """Keys in a row, and the text that says that their answer is there.

    Attributes:
        keys: Names as tmux has them, other words letter by letter; ``3*Down`` is three of a kind.
        answer: A regular expression for the screen.
        line: A command for the shell instead of keys.
        then: Done before, and not counted: keys that lead to where the task begins.
    """

    keys: str = ""
    answer: str = ""
    line: str = ""
    then: str = ""


@dataclass(frozen=True)
class Task:
    """A task of the page, and how a program of a certain age does it.

    Attributes:
        number: As on the page; a letter behind it is another way.
        title: In a few words.
        parts: What is typed.
        is_long: Whether it is a run, and so played once.
        begins: ``form`` in an open workstation, ``alone`` in one without runs, ``shell``, ``live``
            with a run under way that the terminal has lost, ``hung`` with one whose worker was
            stopped by SIGSTOP.
    """

    number: str
    title: str
    parts: tuple[Part, ...]
    is_long: bool = False
    begins: str = "form"


BF16_RUN = "F2 3*{next} 2*Right C-r"
BLOCKS = r"blocks?[ .]+\d"
FITTED = r"fits?\s+in\s+79"
EXPLAINED = r"(?i)formula|closes"
TRACE = "trace.json.gz"


def tasks_now(program: str) -> list[Task]:
    """The tasks with the keys of today."""
    asked = "cs336-2025/2.7B context=2048 precision=bf16 --card h100 --fit batch"
    fits = (
        "Enter 2.7 Enter 2*Down 2048 Down 2*Right 3*Down Enter h1 Enter",
        r"No batch is sure to fit: batch 1",
    )
    own = "run nano.py:make batch=2 context=64 steps=5"
    return [
        *_alike("Down", program, own, (Part("F4 3 v", BLOCKS),)),
        Task("1", "fits, and which batch", (Part(*fits),), begins="alone"),
        _shell("1b", "the same, from a shell", f"{program} estimate {asked}", FITTED),
    ]


def tasks_before(program: str) -> list[Task]:
    """The tasks with the keys of before: no cards, no letters in lists, Tab from row to row."""
    settings = ("model=cs336-2025/2.7B", "context=2048", "precision=bf16", "device=cuda")
    asked = " ".join(f"--set {setting}" for setting in settings)
    fits = (
        "5*Right 2*Tab 2048 Tab 2*Right 18*Tab 79.6GiB",
        r"of 79\.6 GiB",
    )
    own = "run " + " ".join(
        f"--set {setting}" for setting in ("model=nano.py:make", "batch=2", "context=64", "steps=5")
    )
    return [
        *_alike("Tab", program, own, (Part("F4 3", "Operators"), Part("v", BLOCKS))),
        Task("1", "fits, and which batch", (Part(*fits),), begins="alone"),
        _shell(
            "1b",
            "the same, from a shell",
            f"{program} estimate {asked} --fit batch --capacity 79.6GiB",
            FITTED,
        ),
    ]


def _alike(following: str, program: str, own: str, layers: tuple[Part, ...]) -> list[Task]:
    """What is typed alike, but for the key to the next row and the words of a run.

    Args:
        layers: The keys of task 2. Before, one that came before the tab was there was lost.
    """
    runs = (
        Part("C-r", RESULT_OPEN),
        Part(BF16_RUN.format(next=following), RESULT_OPEN),
        Part("F5 Space Down Space c", VERDICT),
    )
    return [
        Task("3", "fp32 against bf16", runs, is_long=True),
        Task("2", "which layer dominates", layers),
        _shell("5", "hand over a result", f"{program} export last html", r"\.html"),
        Task("6", "the run of an hour ago", (Part("F5 / bf16 Enter Enter", RESULT_OPEN),)),
        Task("8", "what a column means", (Part("?", EXPLAINED, then="F4 3"),)),
        Task("10", "open a trace", (Part(f"F7 {TRACE} Enter", r"explains? (only )?\d"),)),
        _shell("9", "my own module", f"{program} {own}", "Artifacts", is_long=True),
        Task("4", "after the terminal died", (Part(line=program, answer=LIVE),), begins="live"),
        Task("7", "stop what hangs", (Part("x s", RESULT_OPEN),), begins="hung"),
    ]


def _shell(number: str, title: str, line: str, says: str, *, is_long: bool = False) -> Task:
    """A command that prints a text, to the prompt after it."""
    part = Part(line=line, answer=rf"{says}[\s\S]*{PROMPTED}")
    return Task(number, title, (part,), is_long, begins="shell")


class Terminal:
    """A program in tmux, on a server and in a folder of its own."""

    def __init__(self, command: str, folder: Path, home: Path) -> None:
        self._server = f"tasks-{os.getpid()}-{time.monotonic_ns()}"
        environment = ("-e", f"SYSBENCH_HOME={home}", "-e", "PAGER=cat")
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        # Of the user's configuration nothing is read.
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", *size, "-c", folder, *environment, command
        )

    def _tmux(self, *arguments: str | Path) -> str:
        called = ("tmux", "-L", self._server, *map(str, arguments))
        return subprocess.run(called, check=True, capture_output=True, text=True).stdout

    def screen(self) -> str:
        """All lines."""
        return self._tmux("capture-pane", "-p")

    def press(self, keys: Sequence[str]) -> None:
        """Press keys, at the pace of a hand."""
        for position, key in enumerate(keys):
            if position:
                time.sleep(BETWEEN_KEYS)
            self._tmux("send-keys", *(() if NAMED.fullmatch(key) else ("-l",)), "--", key)

    def type(self, line: str) -> None:
        """Put a line before the cursor, all at once."""
        self._tmux("send-keys", "-l", "--", line)

    def wait(self, is_there: str) -> bool:
        """Wait until the screen has an expression; whether it came."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if re.search(is_there, self.screen()):
                return True
            time.sleep(LOOK)
        return False

    def hang_up(self) -> None:
        """End the terminal, as a line that breaks does."""
        self._tmux("kill-server")


def keys_of(text: str) -> list[str]:
    """``2*Down 2048`` as single keys: Down, Down, 2, 0, 4, 8."""
    keys = list[str]()
    for word in text.split():
        times, name = re.fullmatch(r"(?:(\d+)\*)?(.+)", word).groups()  # type: ignore[union-attr]
        keys += int(times or 1) * ([name] if NAMED.fullmatch(name) else list(name))
    return keys


@dataclass
class Player:
    """Plays tasks with one program.

    Attributes:
        program: Its command.
        folder: Where it is started: it has the trace and the model.
        home: Its data folder.
    """

    program: str
    folder: Path
    home: Path

    def seconds(self, task: Task) -> list[float] | None:
        """Of each part; None where an answer did not come."""
        for page in self.folder.glob("*.html"):  # another one is refused
            page.unlink()
        if task.begins == "live":
            with self.opened() as terminal:
                terminal.press(["C-r"])
                terminal.wait(LIVE)
        if task.begins == "hung":
            # A run of an earlier task can still go on in the other folder.
            alone = replace(self, home=self.home.with_name("hung"))
            with alone.opened() as terminal:
                terminal.press(["C-r"])
                terminal.wait(LIVE)
                freeze_workers(alone.home)
                time.sleep(SETTLE)
                return alone._played(terminal, task)
        if task.begins in ("shell", "live"):
            with self._at(SHELL, PROMPTED) as terminal:
                return self._played(terminal, task)
        # A run of task 4 can still go on: it would be shown instead of the form.
        alone = replace(self, home=self.home.with_name("alone"))
        with (alone if task.begins == "alone" else self).opened() as terminal:
            return self._played(terminal, task)

    def opened(self) -> AbstractContextManager[Terminal]:
        """The workstation, when it can be typed into."""
        return self._at(self.program, f"{OPENED}|{LIVE}")

    @contextmanager
    def _at(self, command: str, first: str) -> Iterator[Terminal]:
        terminal = Terminal(command, self.folder, self.home)
        try:
            terminal.wait(first)
            time.sleep(SETTLE)
            yield terminal
        finally:
            terminal.hang_up()

    def _played(self, terminal: Terminal, task: Task) -> list[float] | None:
        taken = []
        for part in task.parts:
            if part.then:
                terminal.press(keys_of(part.then))
                time.sleep(SETTLE)
            if part.line:
                terminal.press(["C-l"])
                terminal.type(part.line)
            began = time.monotonic()
            terminal.press(["Enter"] if part.line else keys_of(part.keys))
            if not terminal.wait(part.answer or PROMPTED):
                print(f"task {task.number}:\n{terminal.screen()}", file=sys.stderr)
                return None
            taken.append(time.monotonic() - began)
            time.sleep(SETTLE if task.is_long else 0.0)
        return taken


def freeze_workers(home: Path) -> None:
    """Stop the workers of a data folder in the middle of what they do, as a hang does."""
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("SYSBENCH_HOME") == str(home)
            if is_ours and any("core.worker" in word for word in process.cmdline()):
                process.suspend()
        except psutil.Error:
            continue  # it has ended, or is another's


def main() -> None:
    """Play the tasks and print a row of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", choices=("now", "before"), default="now")
    parser.add_argument("--trace", type=Path, required=True, help="a chrome trace, *.json.gz")
    parser.add_argument("--only", default="", help="numbers of tasks, with commas")
    parser.add_argument("program", nargs="+", help="behind --")
    arguments = parser.parse_args()
    program = shlex.join(arguments.program)
    tasks = (tasks_now if arguments.keys == "now" else tasks_before)(program)
    only = set(filter(None, arguments.only.split(",")))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder, home = Path(place) / "work", Path(place) / "home"
        folder.mkdir()
        shutil.copy(arguments.trace, folder / TRACE)
        (folder / "nano.py").write_text(OWN_MODEL)
        player = Player(program, folder, home)
        print(f"| task | keys | seconds | load, {os.cpu_count()} cores |\n|---|---|---|---|")
        for task in tasks:
            if not only or task.number in only:
                print(row_of(task, player), flush=True)


def row_of(task: Task, player: Player) -> str:
    """A task's keys, the medians of its seconds with their range, and the load meanwhile."""
    repeats = 1 if task.is_long or task.begins in ("live", "hung") else REPEATS
    played = [player.seconds(task) for _ in range(repeats)]
    seconds = [each for each in played if each is not None]
    words = [
        f"{statistics.median(times):.1f}"
        + (f" ({min(times):.1f} to {max(times):.1f})" if len(times) > 1 else "")
        for times in zip(*seconds, strict=True)
    ]
    counts = ["one line" if part.line else str(len(keys_of(part.keys))) for part in task.parts]
    failed = f"; {repeats - len(seconds)} of {repeats} without an answer" * (len(seconds) < repeats)
    keys = " + ".join(counts)
    load = f"{os.getloadavg()[0]:.1f}"
    return f"| {task.number} {task.title} | {keys} | {' + '.join(words)}{failed} | {load} |"


if __name__ == "__main__":
    main()
