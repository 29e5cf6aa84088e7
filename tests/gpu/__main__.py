"""One command for the hour when there is a GPU: ``python -m tests.gpu``, or ``make gpu-check``.

Runs the stages in their order, each in a process of its own under a limit of its own, and writes
``docs/validation/<gpu>.md`` as their lines come. A stage that fails says so on the page, and the
next one begins. A second start leaves out what is done and takes up the rows of what was cut off.

On a null GPU it is a rehearsal: its page says so, has no times, and goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sysbench.core.errors import SysbenchError
from sysbench.core.machine.devices import resolve_device, sample_of
from sysbench.core.machine.host_sampler import kill_descendants
from sysbench.core.machine.read_environment import cpu_model
from tests.gpu.page import Ended, ended, keep, lines_path, slug, write_page
from tests.gpu.stages.registry import STAGES
from tests.gpu.stages.stage import ROOT, Stage
from tests.null_gpu.place import is_null

LEAST_SECONDS = 20.0
"""A stage is not begun with less."""
BEFORE_END = 5.0
"""Seconds before its limit by which a stage is asked to come to its end."""
PAGES = ROOT / "docs" / "validation"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done; 0 when every stage asked for is."""
    options = _options(arguments)
    device = resolve_device(options.device)
    sample = sample_of(device)
    title = sample.name if sample else cpu_model()
    null = is_null(title)
    folder = (options.folder or _default_folder(title, null)).absolute()
    if options.quick:
        folder /= "quick"  # its few rows are not those of the whole check
    out = (options.out or (folder if null or options.quick else PAGES)).absolute()
    if null and out.is_relative_to(PAGES):
        raise SysbenchError(f"{out}: no page of a null GPU goes there")
    folder.mkdir(parents=True, exist_ok=True)
    path = out / f"{slug(title)}.md"
    fixtures = options.fixtures or folder / "fixtures"
    bench = {
        "device": device,
        "is_null": null,
        "is_quick": options.quick,
        "folder": str(folder),
        "fixtures": str(fixtures.absolute()),
    }
    chosen = [stage for stage in STAGES if stage.name in (options.stages or _names())]
    for stage in chosen:
        if stage.name in options.again:
            for old in folder.glob(f"{stage.name}.*"):
                old.unlink()
    until = time.monotonic() + 60 * options.minutes

    def write() -> None:
        write_page(path, title, folder, STAGES, is_null=null)

    for stage in chosen:
        before = ended(folder, stage)
        seconds = min(60 * stage.minutes, until - time.monotonic())
        if before is not None and before.outcome == "done":
            print(f"{stage.name}: done before", file=sys.stderr)
        elif seconds < LEAST_SECONDS:
            print(f"{stage.name}: no time left", file=sys.stderr)
        elif device == "cpu" and not stage.on_cpu:
            keep(folder, stage, Ended("needs a GPU", 0.0))
        else:
            how = run_stage(stage, bench, folder, seconds, write)
            keep(folder, stage, how)
            print(f"{stage.name}: {how.outcome}, {how.seconds:.0f} s {how.detail}", file=sys.stderr)
        write()
    print(path)
    ends = [ended(folder, stage) for stage in chosen]
    return 0 if all(how is not None and how.outcome == "done" for how in ends) else 1


def run_stage(
    stage: Stage,
    bench: dict[str, object],
    folder: Path,
    seconds: float,
    reported: Callable[[], None],
) -> Ended:
    """Run one stage to its end or its limit.

    Args:
        stage: The row.
        bench: Fields of the `Bench`, without the stage's own.
        folder: Takes its lines and its log.
        seconds: The limit.
        reported: Called after every line.
    """
    (folder / f"{stage.name}.json").unlink(missing_ok=True)
    began = time.monotonic()
    log = folder / f"{stage.name}.log"
    was_cut = threading.Event()
    with log.open("w") as errors, lines_path(folder, stage).open("w") as lines:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.stages.registry", stage.name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )

        def cut() -> None:
            was_cut.set()
            kill_descendants(process.pid)
            process.kill()

        timer = threading.Timer(seconds, cut)
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it failed at once: its log says how
                process.stdin.write(json.dumps(bench | {"seconds": seconds - BEFORE_END}) + "\n")
                process.stdin.close()
            for text in process.stdout:
                lines.write(text)
                lines.flush()
                reported()
            code = process.wait()
        finally:
            timer.cancel()
            kill_descendants(process.pid)
            process.kill()
    passed = time.monotonic() - began
    if was_cut.is_set():
        return Ended("cut off", passed, "a second start takes up its rows")
    if code:
        said = log.read_text(errors="replace").strip().splitlines()
        return Ended("failed", passed, said[-1] if said else f"exit code {code}")
    return Ended("done", passed)


def _default_folder(title: str, null: bool) -> Path:
    if not null:
        return ROOT / ".gpu-check" / slug(title)
    return Path(tempfile.gettempdir()) / f"gpu-check-{os.getuid()}" / slug(title)


def _names() -> list[str]:
    return [stage.name for stage in STAGES]


def _stages(text: str) -> list[str]:
    names = _names() if text == "all" else [word for word in text.split(",") if word]
    unknown = set(names) - set(_names())
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(_names())}")
    return names


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--stages", type=_stages, help=f"of {', '.join(_names())}; default all")
    parser.add_argument("--again", type=_stages, default=[], help="repeat these, or all")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all stages together")
    parser.add_argument(
        "--quick", action="store_true", help="fewest cells of each stage, to rehearse"
    )
    parser.add_argument("--folder", type=Path, help="keeps rows and runs (.gpu-check/GPU)")
    parser.add_argument("--fixtures", type=Path, help="takes recordings (FOLDER/fixtures)")
    parser.add_argument("--out", type=Path, help="takes the page (docs/validation)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SysbenchError as error:
        sys.exit(f"nothing was checked: {error}")
