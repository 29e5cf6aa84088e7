"""Models of users on a null GPU: tiny ones of transformers' architectures, reported and measured.

``python -m tests.validation.null_gpu.models`` prints the table of ``null-gpu.md``, and with
``--write`` puts it there; with names of architectures only these. The architectures are those of
``tests/validation/models.py``; transformers has to be installed beside the packages of the tests.
Each is a process of its own. A null GPU computes no values: what transformers reads from ids and
masks is answered in both as the dry run answers it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sysbench.core.predict.sizes import HOPPER_WORKSPACE
from sysbench.core.spec.spec import RunSpec
from tests.validation.models import ARCHITECTURES, SIZES, WITHOUT_CONTEXT
from tests.validation.null_gpu.cells import measured, predicted
from tests.validation.null_gpu.page import ROOT, null_gpu, replace_part

PRECISIONS = ("fp32", "bf16")
CHILD = "--child"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What a training step of an architecture held, measured and predicted.

    Attributes:
        error: Why there is no prediction, or no step; the amounts are 0 then.
    """

    name: str
    precision: str
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    told_allocated_bytes: int = 0
    told_reserved_bytes: int = 0
    refused: str = ""
    told_refused: str = ""
    torch: str = ""
    error: str = ""

    @property
    def own_bytes(self) -> int:
        """What is allocated also cuBLAS's two workspaces."""
        return self.allocated_bytes - 2 * HOPPER_WORKSPACE

    @property
    def off(self) -> float:
        """Predicted over measured, less one, without the workspaces."""
        return (self.told_allocated_bytes - self.allocated_bytes) / self.own_bytes


def model_of(name: str, precision: str) -> Model:
    """The row, from a process that sees a null GPU."""
    with null_gpu() as (python, variables):
        done = subprocess.run(
            [python, "-m", "tests.validation.null_gpu.models", CHILD, name, precision],
            env=variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        # What went wrong in a step is said above the phase that it happened in.
        said = [line for line in done.stderr.splitlines() if re.match(r"\w[\w.]*Error: ", line)]
        return Model(name=name, precision=precision, error=(said or ["no message"])[0])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Model)


def answered(name: str, precision: str) -> Model:
    """Predict and measure in this process."""
    from sysbench.core.spec.profiles import resolve
    from sysbench.core.spec.spec import parse_spec
    from sysbench.core.worker.dry_run.dry_step import PlainBatches

    kind, architecture, sizes = ARCHITECTURES[name]
    with tempfile.TemporaryDirectory() as folder:
        values = {**SIZES, **sizes, "model_type": name, "architectures": [architecture]}
        Path(folder, "config.json").write_text(json.dumps(values))
        settings: dict[str, object] = {"model": f"hf:{folder}", "batch": 2, "precision": precision}
        settings |= {"context": 0 if kind.startswith(WITHOUT_CONTEXT) else 64, "device": "cuda:0"}
        spec: RunSpec = resolve(parse_spec(settings))
        found = predicted(spec)
        with PlainBatches():
            found |= measured(spec)
    return Model(name=name, precision=precision, **found)


def lines(models: Sequence[Model]) -> Iterator[str]:
    """The table, and what it comes to."""
    yield f"| architecture | kind | {' | '.join(f'{p}, KiB | predicted' for p in PRECISIONS)} |"
    yield "|---|---|" + "---:|" * 2 * len(PRECISIONS)
    by_name = {name: [m for m in models if m.name == name] for name in ARCHITECTURES}
    for name, rows in by_name.items():
        if rows:
            cells = [cell for row in rows for cell in _cells(row)]
            yield f"| {name} | {ARCHITECTURES[name][0]} | {' | '.join(cells)} |"
    failed = [model for model in models if model.error]
    known = [model for model in models if not model.error]
    errors = sorted(abs(model.off) for model in known)
    reserved = [abs(m.told_reserved_bytes / m.reserved_bytes - 1) for m in known]
    yield ""
    yield (
        f"{len(known)} of {len(models)} steps are predicted, {sum(not one for one in errors)} to "
        f"the byte; the median is off by {statistics.median(errors):.3%}, the worst by "
        f"{errors[-1]:.3%}. Reserved memory, with the workspaces, is off by "
        f"{max(reserved):.2%} at most. torch {', '.join(sorted({m.torch for m in known}))}."
    )
    for model in failed:
        yield f"- {model.name}, {model.precision}: {model.error}"


def _cells(model: Model) -> tuple[str, str]:
    if model.error:
        return "n/a", "n/a"
    return f"{model.own_bytes / 2**10:,.1f}", f"{model.off:+.3%}" if model.off else "0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--write", action="store_true", help="put the table into null-gpu.md")
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(msgspec.json.encode(answered(*arguments.names)).decode())
        return
    models = []
    for name in arguments.names or ARCHITECTURES:
        for precision in PRECISIONS:
            models.append(model_of(name, precision))
            print(models[-1], file=sys.stderr)
    table = list(lines(models))
    if arguments.write:
        replace_part("models", table)
    print("\n".join(table))


if __name__ == "__main__":
    main()
