"""A worker without torch: it reports the timing that a script in its folder asks for.

``$WORKER_DOUBLE`` is the folder. ``rounds.jsonl`` there gets a line when a worker starts and one
when it ends; the number of its start, from 1, is the number of the worker. ``script.json`` has the
timing block to report, and what certain workers do instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["WORKER_DOUBLE"])
PIPE = int(os.environ["SYSBENCH_EVENT_FD"])


def note(**facts: object) -> int:
    """Add a line to the log; the number of starts in it."""
    with (FOLDER / "rounds.jsonl").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print(json.dumps({"pid": os.getpid(), "ns": time.monotonic_ns(), **facts}), file=file)
        file.flush()
        file.seek(0)
        return sum('"start"' in line for line in file)


def tell(event: str, **facts: object) -> None:
    line = json.dumps({"event": event, "t_ns": time.time_ns(), **facts}) + "\n"
    os.write(PIPE, line.encode())


def take_steps(spec: dict[str, Any]) -> bool:
    """Tell one step after another, twenty milliseconds each; false if the supervisor is gone."""
    for index in range(spec["steps"]):
        times = {"step_ms": [20.0], "phases_ms": {"forward": [20.0]}}
        tell("StepsTimed", first_index=index, median_ms=20.0, half_width=None, **times)
        if select.select([0], [], [], 0.02)[0]:
            return False
    return True


def timing(template: dict[str, Any], spec: dict[str, Any], number: int) -> dict[str, Any]:
    """Ten milliseconds, five more for each further row, and up to 0.06 % that differs by round."""
    median_ms = 5 * (1 + spec["batch"]) * (1 + (number * 5 % 13 - 6) * 1e-4)
    template["step"] |= {
        key: median_ms for key in ("median_ms", "ci_low_ms", "ci_high_ms", "mean_ms")
    }
    return template | {"loss_start": 4.0 + spec["clip"], "samples_ms": [median_ms] * 6}


def main() -> int:
    job = json.loads(sys.stdin.readline())
    number = note(what="start", batch=job["spec"]["batch"])
    script = json.loads((FOLDER / "script.json").read_text())
    tell("StageEntered", stage="measure")
    if number in script["hold"]:
        sys.stdin.read()  # until the supervisor is gone, or ends this process
        return 1
    if number in script["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if number in script["abort"]:
        # As GCC's runtime does where nobody catches a refused request.
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.write(2, b"  what():  std::bad_alloc\n")
        os.abort()
    if number in script["fail"]:
        failure = {"kind": "ValueError", "message": "no such thing", "traceback": ""}
        tell("WorkerFailed", is_cuda_error=False, **failure)
        return 1
    if number in script["starve"]:
        unknown = ("free_bytes", "allocated_bytes", "reserved_bytes")
        facts = {"requested_bytes": 2**30, "message": "no memory", "stack": []}
        tell("OutOfMemory", phase="forward", **facts, **dict.fromkeys(unknown))
        return 1
    if script["steps"] and not take_steps(job["spec"]):
        return 1
    time.sleep(script["seconds"])
    tell("ResultReported", block="timing", data=timing(script["timing"], job["spec"], number))
    note(what="end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
