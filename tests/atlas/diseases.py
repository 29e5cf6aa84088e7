"""The scripts of the atlas: where each runs, and the findings that it must and may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Where = Literal["cpu", "null-gpu", "ranks"]


@dataclass(frozen=True)
class Disease:
    """A script of ``tests/atlas/scripts``; with ``--healthy`` it runs without its disease.

    Attributes:
        rules: Rules that must speak of the sick script.
        follows: Rules that may speak of it, too: consequences of the disease.
        both: Rules that may speak of the healthy script, too.
        why: How ``follows`` and ``both`` follow.
    """

    script: str
    rules: tuple[str, ...]
    where: Where = "cpu"
    follows: tuple[str, ...] = ()
    why: str = ""
    both: tuple[str, ...] = ()


IDLE = ("file-device-idle", "file-small-kernels")
DISEASES = (
    Disease("slow_loader", ("input-bound",)),
    Disease("loader_in_main", ("input-bound",)),
    Disease("sync_each_step", ("reads-back",), "null-gpu", IDLE, "the GPU waits for launches"),
    Disease("checked_layers", ("reads-back",), "null-gpu", IDLE, "the GPU waits for launches"),
    Disease("kept_graph", ("growing-memory",), "null-gpu", IDLE, "the model is small"),
    Disease("growing_list", ("growing-memory",)),
    Disease(
        "growing_cache",
        ("growing-memory",),
        follows=("python-loop", "gc-pauses"),
        why="features are lists of Python, and the collector goes through all that are kept",
    ),
    Disease(
        "recompilation",
        ("recompiles",),
        follows=("gc-pauses",),
        both=("first-steps",),
        why="it compiles there, and compiling makes garbage",
    ),
    Disease("graph_breaks", ("graph-breaks",), both=("first-steps",), why="it compiles there"),
    Disease(
        "straggler",
        ("slow-rank",),
        "ranks",
        follows=("python-loop",),
        why="the slow rank's work is a loop",
    ),
    Disease("skewed_experts", ("skewed-experts",)),
    Disease(
        "fragmentation",
        ("fragmentation",),
        "null-gpu",
        (*IDLE, "growing-memory"),
        why="the buffers grow, and the GPU waits",
    ),
    Disease(
        "fp32_logits",
        ("fp32-logits",),
        "null-gpu",
        (*IDLE, "category-out-of-line"),
        why="the model is small, and the casts are copies",
    ),
    Disease("loop_optimizer", ("loop-optimizer",)),
    Disease("left_checkpointing", ("recomputes",)),
    Disease("evaluation_with_gradients", ("evaluation-with-gradients",)),
    Disease("gc_pauses", ("gc-pauses",), follows=("slow-line",), why="one line collects"),
    Disease("print_each_step", ("prints",)),
    Disease("dtype_ping_pong", ("casts",)),
    Disease("naive_attention", ("unfused-attention",)),
    Disease("tiny_batch", ("file-device-idle",), "null-gpu", IDLE, "short kernels"),
    Disease("unused_parameters", ("unused-parameters",), "ranks"),
    Disease("exchange_each_micro_batch", ("exchanges-each-micro-batch",), "ranks"),
    Disease("cpu_offload", ("file-copies",), "null-gpu", IDLE, "the GPU waits for copies"),
    Disease("cold_cache", ("first-steps",), follows=("input-bound",), why="it is the loader"),
    Disease(
        "stalling_checkpoints", ("checkpoint-stalls",), follows=("first-steps",), why="it saves"
    ),
    Disease("python_loop", ("python-loop",)),
)
UNSEEN = (
    Disease("lines_of_text", ("input-bound",)),
    Disease("loss_history", ("growing-memory",)),
    Disease("accuracy_each_step", ("reads-back",), "null-gpu", IDLE, "the GPU waits for launches"),
    Disease("python_number", ("recompiles",), both=("first-steps",), why="it compiles there"),
    Disease("many_small_tensors", ("loop-optimizer",)),
    Disease("einsum_attention", ("unfused-attention",)),
    Disease("archived_state", ("checkpoint-stalls",), follows=("slow-line",), why="one line saves"),
    Disease("confusion_matrix", ("python-loop",), both=("slow-line",), why="argmax takes long"),
    Disease(
        "kept_objects",
        ("gc-pauses",),
        follows=("slow-line", "python-loop"),
        why="a line makes objects, and collects",
    ),
    Disease(
        "validation_with_graph",
        ("evaluation-with-gradients",),
        both=("evaluation",),
        why="it evaluates",
    ),
    Disease("half_layers", ("casts",)),
    Disease(
        "pickled_weights", ("checkpoint-stalls",), follows=("slow-line",), why="one line saves"
    ),
    Disease(
        "text_snapshots",
        ("checkpoint-stalls",),
        follows=("slow-line", "python-loop"),
        why="one line saves, and formats in Python",
    ),
    Disease("packed_rows", ("input-bound",)),
)
"""Scripts that were written after the rules, and that no limit was chosen on."""
OF_MEASURING = (
    *("not-settled", "drifting", "busy-machine", "other-tenants", "clock-held", "short-run"),
    *("tracing-perturbed", "steps-repeat", "null-gpu", "slow-steps", "low-coverage"),
    *("file-odd-call", "file-odd-step"),
)
"""Rules on the measurement and its machine: a script can neither have nor lack what they find."""
