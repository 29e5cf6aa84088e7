"""`run`: measure a spec, attached or detached."""

from __future__ import annotations

import argparse

from sysbench.core.record.blocks import DEFAULT_PASSES, STEP_PASSES
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.tui.commands.arguments import examples
from sysbench.tui.commands.spec_arguments import (
    add_spec_arguments,
    spec_keys,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure a spec. Each pass is a separate process; progress goes to stderr, the\n"
        "report (or with --json the record, as one JSON document) to stdout."
    )
    lines = examples(
        ("sysbench-tui run", "the default spec, all passes"),
        ("sysbench-tui run cs336-2025/small precision=bf16 context=512", "a model, two keys"),
        ("sysbench-tui run nano.py:make model.layers=4", "your own model"),
        ("sysbench-tui run mine.toml batch=8 --passes timing", "a file with one change"),
        ("sysbench-tui run --repeat 5", "time it in five fresh processes"),
        ("sysbench-tui run --json > record.json", "for scripts"),
        ("sysbench-tui run --detach", "return at once; `attach last` follows it"),
    )
    parser.epilog = f"{lines}\n\n{spec_keys()}"
    add_spec_arguments(parser)
    parser.add_argument(
        "--passes",
        metavar="LIST",
        help=f"passes to run, separated by commas (default: {','.join(DEFAULT_PASSES)}; also "
        f"available: {', '.join(name for name in STEP_PASSES if name not in DEFAULT_PASSES)})",
    )
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="dense peak of the device in this precision and its memory bandwidth, for MFU and "
        "roofline (default: from the table of GPUs or the device)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help=f"time the steps in N processes, 1 to {MAX_ROUNDS}; the confidence interval is then "
        "between processes (default: 1)",
    )
    parser.add_argument("--detach", action="store_true", help="start the run and return at once")
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )
