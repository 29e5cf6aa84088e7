"""`estimate`: predict cost, memory and largest fit of a spec."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from textwrap import wrap

from sysbench.core.formatting import format_bytes
from sysbench.core.machine.peaks import known_cards
from sysbench.core.predict.dry_run_client import Estimator
from sysbench.core.spec.models import note_of, parameters_of_models
from sysbench.tui.commands.arguments import add_brief, add_table_formats, examples
from sysbench.tui.commands.spec_arguments import add_spec_arguments, names_own_model


def declare_estimate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Predict a spec without measuring. The closed form needs no torch;\n"
        "--exact runs the step on meta tensors in a separate process.\n"
        "The CUDA device need not be present: --card names a GPU with known memory,\n"
        "compute capability and peaks; device=cuda --capacity SIZE describes any other."
    )
    parser.epilog = (
        examples(
            ("sysbench-tui estimate cs336-2025/xl batch=4", ""),
            ("sysbench-tui estimate 10B device=cuda --exact", "by phase"),
            ("sysbench-tui estimate qwen3-8b --card h100 --phase loss", "what it holds there"),
            (
                "sysbench-tui estimate --card h100 cs336-2025/2.7B context=2048 precision=bf16 "
                "--fit batch",
                "",
            ),
            (
                "sysbench-tui estimate device=cuda --fit batch --capacity 24GiB --capability 8.9",
                "",
            ),
            (
                "sysbench-tui estimate llama-3.1-8b step=decode context=8192 precision=bf16-pure "
                "--card h100 --fit sequences",
                "",
            ),
            ("sysbench-tui estimate --table context=128,256,512 --table precision=fp32,bf16", ""),
            ("sysbench-tui estimate cs336-2025/xl --savings", "checkpoints, precision, optimizer"),
            (
                "sysbench-tui estimate cs336-2025/2.7B --card h100 --world dp=8,tp=4",
                "each kind of rank",
            ),
            (
                "sysbench-tui estimate cs336-2025/2.7B batch=8 --card h100 --plan 64",
                "which layouts fit",
            ),
            ("sysbench-tui estimate mine.toml --json", "for scripts"),
        )
        + f"\n\n{_cards()}\n{_notes()}\nThe keys are listed by `sysbench-tui run --help`."
    )
    add_spec_arguments(parser)
    parser.add_argument(
        "--exact", action="store_true", help="predict by running the model on meta tensors"
    )
    parser.add_argument(
        "--phase",
        metavar="NAME",
        help="show the ledger at the peak of this phase, such as loss; implies --exact",
    )
    parser.add_argument(
        "--world",
        metavar="KEY=N,…",
        help="predict each rank of a cluster, such as dp=32,tp=8 or "
        "pp=4,dp=8,tp=8,microbatches=16; implies --exact",
    )
    parser.add_argument(
        "--rank", metavar="N", type=int, help="predict this rank of --world (default: each kind)"
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--card", metavar="NAME", help="predict for this GPU, such as h100 (listed below)"
    )
    memory.add_argument(
        "--capacity",
        metavar="SIZE",
        help="memory to fit into, such as 24GiB, or 80GB for 80e9 bytes (default: the device's)",
    )
    parser.add_argument(
        "--capability",
        metavar="X.Y",
        help="compute capability of a CUDA device, such as 8.0 (default: the device's)",
    )
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="peak TFLOP/s and GB/s of the device, for the roofline",
    )
    question = parser.add_mutually_exclusive_group()
    question.add_argument(
        "--fit",
        choices=("batch", "sequences", "context", "layers", "microbatches"),
        help="find the largest value that fits in memory, or with --world on its fullest rank; "
        "sequences is the batch of step=decode",
    )
    question.add_argument(
        "--table",
        action="append",
        metavar="KEY=VALUE,…",
        help="predict every value; repeat for all combinations",
    )
    question.add_argument(
        "--plan",
        metavar="GPUS",
        type=int,
        help="list the layouts of this many devices by headroom; implies --exact; --world sets "
        "what they share, such as data=hsdp, schedule=any, reshard=any",
    )
    question.add_argument(
        "--savings", action="store_true", help="list single changes by the memory they save"
    )
    parser.add_argument(
        "--block-size",
        metavar="TOKENS",
        type=int,
        help="with --fit and step=decode: tokens in a block of a paged cache (default: 16)",
    )
    add_table_formats(parser)
    add_brief(parser)


def main(arguments: argparse.Namespace) -> int:
    """Predict; return 0 even if the spec does not fit."""
    needs_exact = asks_for_exact(arguments) or names_own_model(arguments)
    with Estimator() if needs_exact else nullcontext() as exact:
        from sysbench.tui.commands.estimate_answers import answer  # lazy: while torch loads

        answer(arguments, exact)
    return 0


def asks_for_exact(arguments: argparse.Namespace) -> bool:
    """Whether an option needs the step on meta tensors."""
    return any((arguments.exact, arguments.phase, arguments.world, arguments.plan is not None))


def _cards() -> str:
    lines = [
        f"  {card.key:<11}{card.name:<18}{format_bytes(card.memory_bytes):>9}"
        f"   compute capability {card.capability}"
        for card in known_cards().values()
    ]
    return "\n".join(["cards, with their total memory as nvidia-smi reports it:", *lines, ""])


def _notes() -> str:
    notes = {name: note for name in parameters_of_models() if (note := note_of(name))}
    lines = [
        "\n".join(wrap(note, 100, initial_indent=f"  {name:<19}", subsequent_indent=21 * " "))
        for name, note in notes.items()
    ]
    return "\n".join(["notes on models:", *lines, ""])
