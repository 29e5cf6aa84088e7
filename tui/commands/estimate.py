"""`estimate`: the predicted cost of a spec, the largest that fits, a table of predictions."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

from ...core.estimate.exact import Estimator
from .arguments import add_table_formats, examples
from .spec_arguments import add_spec_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the spec, the method of prediction, and the questions to answer."""
    parser.description = (
        "Predict a spec: nothing is measured. The closed form needs no torch and takes a\n"
        "millisecond; --exact plays the step on tensors without memory, in a separate process.\n"
        "A CUDA device need not be here: device=cuda with --capacity asks for another machine."
    )
    parser.epilog = (
        examples(
            ("sysbench-tui estimate cs336-2025/xl batch=4", ""),
            ("sysbench-tui estimate 10B device=cuda --exact", "by phase"),
            (
                "sysbench-tui estimate device=cuda --fit batch --capacity 24GiB --capability 8.9",
                "",
            ),
            ("sysbench-tui estimate --table context=128,256,512 --table precision=fp32,bf16", ""),
            ("sysbench-tui estimate cs336-2025/xl --savings", "checkpoints, precision, optimizer"),
            ("sysbench-tui estimate mine.toml --json", "for scripts"),
        )
        + "\n\nThe keys are listed by `sysbench-tui run --help`."
    )
    add_spec_arguments(parser)
    parser.add_argument("--exact", action="store_true", help="by the real code on meta tensors")
    parser.add_argument(
        "--capacity", metavar="SIZE", help="to fit into, such as 24GiB (default: the device's)"
    )
    parser.add_argument(
        "--capability",
        metavar="X.Y",
        help="compute capability of a CUDA device, such as 8.0 (default: the device's)",
    )
    parser.add_argument(
        "--peak", metavar="TFLOPS[,GB/S]", help="of the device, for the roofline time of --exact"
    )
    question = parser.add_mutually_exclusive_group()
    question.add_argument(
        "--fit", choices=("batch", "context", "layers"), help="the largest that fits"
    )
    question.add_argument(
        "--table",
        action="append",
        metavar="KEY=VALUE,…",
        help="a prediction for every value; may be repeated, for every combination",
    )
    question.add_argument(
        "--savings", action="store_true", help="what one change each would save, the most first"
    )
    add_table_formats(parser)


def main(arguments: argparse.Namespace) -> int:
    """Predict; always 0, since a spec that does not fit is an answer, not a failure."""
    with _exact_mode(arguments) as exact:
        # Imported late: in exact mode another process imports torch meanwhile.
        from .report.estimate_answers import answer

        answer(arguments, exact)
    return 0


def _exact_mode(arguments: argparse.Namespace) -> AbstractContextManager[Estimator | None]:
    """One process for all predictions; nothing without ``--exact``."""
    return Estimator() if arguments.exact else nullcontext()
