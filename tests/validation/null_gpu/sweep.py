"""The predicted memory of random shapes against the memory pass on a null GPU.

``python -m tests.validation.null_gpu.sweep --count 100`` draws new shapes, and prints their seed,
the shares within bounds, and each shape that misses. ``--seed`` draws the same again; with
``--results FILE.csv`` the shapes that are in the file are not measured again, so that an
interrupted sweep goes on. ``--write`` puts the file's results into ``null-gpu.md``; with
``--count 0`` nothing is measured. Ends with 1 if a target is missed.

A shape is a built-in model of any size up to a few GB, with any step, precision, attention kernel
and optimizer, in part with recomputed blocks. It is measured by the program's own memory pass in a
process forked from one that has imported torch and not yet opened CUDA, and predicted as `estimate`
does, in the same process.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.predict.allocator_settings import MIB
from sysbench.core.predict.closed_form import predict
from sysbench.core.spec.choices import ATTENTIONS, PRECISIONS
from sysbench.core.spec.spec import RunSpec
from tests.validation.null_gpu.page import ROOT, null_gpu, read_table, replace_part, write_table

CHILD = "--child"
AXES = ("vocab", "d_model", "d_ff", "layers", "heads", "batch", "context")
KEYS = ("step", "precision", "attention", "optimizer", "clip", "checkpoint")
LARGEST = 4 * 2**30
"""Bytes of the largest predicted peak: larger shapes take longer and show no more."""
ALLOCATED_WITHIN, RESERVED_WITHIN, WORST_RESERVED = 0.001, 0.01, 0.03
ALLOCATED_SHARE, RESERVED_SHARE = 0.95, 0.90


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn spec, and what it held in the third step, measured and predicted.

    Attributes:
        number: Of the drawing, from 0.
        failure: Why there are no amounts; empty where there are.
    """

    seed: str
    number: int
    vocab: int
    d_model: int
    d_ff: int
    layers: int
    heads: int
    batch: int
    context: int
    step: str
    precision: str
    attention: str
    optimizer: str
    clip: float
    checkpoint: int = 0
    requested_bytes: int = 0
    told_requested_bytes: int = 0
    allocated_bytes: int = 0
    told_allocated_bytes: int = 0
    reserved_bytes: int = 0
    told_reserved_bytes: int = 0
    failure: str = ""
    torch: str = ""

    @property
    def spec(self) -> RunSpec:
        settings: dict[str, Any] = {name: getattr(self, name) for name in (*AXES, *KEYS)}
        return RunSpec(device="cuda:0").changed(**settings)

    def error(self, name: str) -> float:
        """Predicted over measured, less one."""
        measured = getattr(self, f"{name}_bytes")
        predicted = getattr(self, f"told_{name}_bytes")
        return float(predicted / measured - 1) if measured else float("inf")

    @property
    def is_within(self) -> bool:
        return (
            self.requested_bytes == self.told_requested_bytes > 0
            and abs(self.error("allocated")) <= ALLOCATED_WITHIN
            and abs(self.error("reserved")) <= RESERVED_WITHIN
        )

    @property
    def words(self) -> str:
        size = " ".join(f"{name}={getattr(self, name)}" for name in AXES)
        return f"{size} {' '.join(str(getattr(self, name)) for name in KEYS)}"


def drawn(seed: str, number: int) -> Shape:
    """The shape of that number: it depends on seed and number alone."""
    chance = random.Random(f"{seed}:{number}")
    while True:
        shape = _draw(chance, seed, number)
        try:
            spec = shape.spec
        except SpecError:  # a kernel that does not take the precision, or this step
            continue
        if predict(spec).peak_bytes <= LARGEST:
            return shape


def _draw(chance: random.Random, seed: str, number: int) -> Shape:
    head = chance.choice((16, 32, 64, 80, 128, 8 * chance.randrange(2, 33)))
    heads = chance.choice((1, 2, 4, 5, 8, 12, 16, 20))
    d_model, layers = head * heads, chance.randrange(1, 33)
    step = chance.choice(("inference", "forward", "forward+backward", "train", "train"))
    has_backward = step in ("forward+backward", "train")
    optimizers = ("adamw-foreach", "adamw-fused", "adamw-loop", "sgd")
    attentions = [one.name for one in ATTENTIONS if not one.compiles and not one.is_of_model]
    wide = chance.choice((4 * d_model, round(8 / 3 * d_model / 64) * 64 or 64, 8 * d_model))
    return Shape(
        seed=seed,
        number=number,
        vocab=chance.choice((chance.randrange(200, 60_000), 32_000, 50_257, 128_256)),
        d_model=d_model,
        d_ff=chance.choice((wide, chance.randrange(16, 4 * d_model + 17))),
        layers=layers,
        heads=heads,
        batch=chance.randrange(1, 9),
        context=chance.choice((chance.randrange(8, 1025), 2 ** chance.randrange(4, 12))),
        step=step,
        precision=chance.choice([row for row in PRECISIONS if not row.recipe]).name,
        attention=chance.choice(attentions),
        optimizer=chance.choice(optimizers) if step == "train" else optimizers[0],
        clip=float(chance.random() < 0.5) if step == "train" else 0.0,
        checkpoint=chance.randint(0, layers) if has_backward and chance.random() < 0.3 else 0,
    )


def sweep(seed: str, count: int, file: Path | None) -> list[Shape]:
    """Measure the shapes that the file does not have; it is written after each.

    Returns those of the seed, or all of the file if no count is asked for.
    """
    known = read_table(file, Shape) if file is not None and file.exists() else []
    rows = {(one.seed, one.number): one for one in known}
    with null_gpu() as (python, environment):
        child = subprocess.Popen(
            [python, "-m", "tests.validation.null_gpu.sweep", CHILD],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None
        for number in range(count):
            if (seed, number) in rows:
                continue
            child.stdin.write(msgspec.json.encode(drawn(seed, number)) + b"\n")
            child.stdin.flush()
            shape = msgspec.json.decode(child.stdout.readline(), type=Shape)
            rows[seed, number] = shape
            if file is not None:
                write_table(file, list(rows.values()))
            print(_line(shape), flush=True)
        child.stdin.close()
        if child.wait():
            raise SystemExit(f"the process that measures ended with {child.returncode}")
    return [one for one in rows.values() if one.seed == seed or not count]


def answer_shapes() -> int:
    """Answer each line of the input, a shape, with its amounts from a process of its own."""
    from sysbench.core.worker import boot  # noqa: F401
    from sysbench.core.worker.dry_run import exact  # noqa: F401
    from sysbench.core.worker.passes import memory_pass  # noqa: F401

    for line in sys.stdin.buffer:
        shape = msgspec.json.decode(line, type=Shape)
        answer, into = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                found = amounts(shape.spec)
            except Exception as error:
                found = {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
            os.write(into, msgspec.json.encode(msgspec.structs.replace(shape, **found)) + b"\n")
            os._exit(0)
        os.close(into)
        with os.fdopen(answer, "rb") as pipe:
            reported = pipe.read()
        _, status = os.waitpid(pid, 0)
        if not reported:
            failed = msgspec.structs.replace(shape, failure=f"the process ended with {status}")
            reported = msgspec.json.encode(failed) + b"\n"
        sys.stdout.buffer.write(reported)
        sys.stdout.flush()
    return 0


def amounts(spec: RunSpec) -> dict[str, Any]:
    """What the third step held by the memory pass, and what is predicted, by names of a `Shape`."""
    import torch

    from sysbench.core.predict.dry_run_client import canonical_spec
    from sysbench.core.record.events import ResultReported
    from sysbench.core.record.record import Memory
    from sysbench.core.runs.worker_process import Job
    from sysbench.core.worker.boot import run_pass
    from sysbench.core.worker.dry_run.exact import exact_prediction
    from sysbench.core.worker.passes import memory_pass

    exact = exact_prediction(canonical_spec(spec), "9.0")
    assert exact.held is not None
    events: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(spec=spec, name="memory", folder=folder)
        run_pass(job, events.append, lambda: memory_pass.measure)
    results = [one for one in events if isinstance(one, ResultReported) and one.block == "memory"]
    if not results:
        return {"failure": str(getattr(events[-1], "message", events[-1])).splitlines()[0]}
    memory = msgspec.convert(results[-1].data, Memory)
    return {
        "requested_bytes": memory.peak_requested_bytes,
        "told_requested_bytes": exact.held.requested_bytes,
        "allocated_bytes": memory.peak_allocated_bytes,
        "told_allocated_bytes": exact.held.allocated_bytes,
        "reserved_bytes": memory.peak_reserved_bytes,
        "told_reserved_bytes": exact.held.reserved_bytes,
        "torch": str(torch.__version__),
    }


def _line(shape: Shape) -> str:
    if shape.failure:
        return f"{shape.number} {shape.words}: {shape.failure}"
    requested = shape.told_requested_bytes - shape.requested_bytes
    return (
        f"{shape.number} {shape.words}: requested {requested:+,} B, "
        f"allocated {shape.error('allocated'):+.3%} of {shape.allocated_bytes / MIB:,.1f} MiB, "
        f"reserved {shape.error('reserved'):+.2%} of {shape.reserved_bytes / MIB:,.0f} MiB"
    )


def lines(shapes: Sequence[Shape]) -> Iterator[str]:
    """By seed the shares within bounds, and each shape outside of them."""
    for seed in dict.fromkeys(one.seed for one in shapes):
        yield from _lines(seed, [one for one in shapes if one.seed == seed])


def _lines(seed: str, shapes: Sequence[Shape]) -> Iterator[str]:
    version = ", ".join(sorted({one.torch for one in shapes if one.torch}))
    yield f"{len(shapes)} shapes of seed {seed}, torch {version}:"
    yield ""
    yield f"- requested to the byte: {_exact(shapes)}"
    for name, bound in (("allocated", ALLOCATED_WITHIN), ("reserved", RESERVED_WITHIN)):
        errors = [one.error(name) for one in shapes]
        yield (
            f"- {name} within {bound:.1%}: {sum(abs(one) <= bound for one in errors)}, to the "
            f"byte {sum(not one for one in errors)}, worst {max(errors, key=abs):+.2%}"
        )
    yield from (f"- off: {_line(one)}" for one in shapes if not one.is_within)
    yield ""


def _exact(shapes: Sequence[Shape]) -> int:
    return sum(one.requested_bytes == one.told_requested_bytes > 0 for one in shapes)


def is_met(shapes: Sequence[Shape]) -> bool:
    """Whether the targets of `null-gpu.md` hold."""
    count = len(shapes)
    allocated, reserved = ([abs(one.error(name)) for one in shapes] for name in _BOUNDED)
    return (
        _exact(shapes) == count
        and sum(one <= ALLOCATED_WITHIN for one in allocated) >= ALLOCATED_SHARE * count
        and sum(one <= RESERVED_WITHIN for one in reserved) >= RESERVED_SHARE * count
        and max(reserved) < WORST_RESERVED
    )


_BOUNDED = ("allocated", "reserved")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="shapes to draw")
    parser.add_argument("--seed", default="", help="draw the shapes of this seed; default: new")
    parser.add_argument("--results", type=Path, help="CSV file to read and to go on with")
    parser.add_argument("--write", action="store_true", help="put the results into null-gpu.md")
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return answer_shapes()
    seed = arguments.seed or secrets.token_hex(3)
    if arguments.count:
        print(f"seed {seed}", flush=True)
    shapes = sweep(seed, arguments.count, arguments.results)
    found = list(lines(shapes))
    if arguments.write:
        replace_part("sweep", found)
    print("\n".join(found))
    return 0 if is_met(shapes) else 1


if __name__ == "__main__":
    sys.exit(main())
