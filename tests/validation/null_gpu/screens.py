"""Pictures of every screen on null GPUs, to be looked at: H100, A100, and eight H100s.

``python -m tests.validation.null_gpu.screens FOLDER`` measures and looks as `screens` does, on each
kind of `tests/null_gpu`, at two sizes, in ``FOLDER/KIND``. The compiled run needs Triton there
(``NULL_GPU_TRITON=1 make null-gpu``). Times mean nothing, and the screens have to say so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.validation.null_gpu.page import null_gpu
from tests.validation.screens import CHANGED, COMPILED, EXHAUSTED, LIVE, PLAIN, Subject, take

KINDS: dict[str, dict[str, object]] = {
    "h100": {"card": "h100"},
    "a100": {"card": "a100"},
    "eight": {"card": "h100", "count": 8},
}
SIZES = ("80x24", "160x48")
SPEC = ("device=cuda", "warmup=1", "precision=bf16")
SMALL = ("cs336-2025/small", "batch=2", "context=256", "steps=3")
DIFFERENCES = {
    COMPILED: ("tiny", "steps=3", "compile=default"),
    EXHAUSTED: ("cs336-2025/small", "batch=64", "context=1024", "steps=3"),
    CHANGED: (*SMALL, "attention=sdpa"),
    PLAIN: (*SMALL, "attention=naive"),
}


def main() -> None:
    """Measure on each kind and take its pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=KINDS, action="append")
    arguments = parser.parse_args()
    for kind in arguments.kind or KINDS:
        with null_gpu(**KINDS[kind]) as (python, variables):
            subject = Subject(
                spec=SPEC,
                differences=DIFFERENCES,
                live=("cs336-2025/small", *LIVE),
                device="cuda",
                python=python,
                variables=variables,
            )
            take(arguments.folder.absolute() / kind, SIZES, subject)


if __name__ == "__main__":
    main()
