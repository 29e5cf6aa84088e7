"""`inspect`: analyse a Chrome trace, memory snapshot, nsys export, or a folder of ranks."""

from __future__ import annotations

import argparse

from sysbench.core.tables.sections import INSPECTED
from sysbench.tui.commands.arguments import (
    add_brief,
    add_file_choice,
    add_no_pager,
    add_table_formats,
    add_tree_options,
    add_wide,
    complete_with,
    examples,
    output_path,
    size_bytes,
)

NEEDS = {
    "steps": "no step markers found in this file",
    "collectives": "no GPU ran one",
    "annotations": "the program opened no range of its own (record_function, NVTX)",
    "python": "it has no Python stacks of launches (with_stack=True)",
    "api": "it has no GPU runtime calls (for an nsys export: --section nsys)",
}
"""Why a file may lack a section."""


OF_FILES = ("findings", *INSPECTED)
RANKS = "ranks"
OF_FOLDERS = (RANKS, "steps", "collectives", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Analyse a trace of torch.profiler (Chrome's .json or Perfetto's .pftrace, also packed),\n"
        "a CUDA memory snapshot (pickle) or an nsys export (SQLite). The format is detected from\n"
        "the content. A separate process with a memory limit decodes the file, and the result is\n"
        "cached.\n"
        "For a folder with one file per rank it compares the ranks; their clocks are aligned\n"
        "by common collectives."
    )
    parser.epilog = examples(
        ("sysbench-tui inspect trace.json.gz", ""),
        ("sysbench-tui inspect trace.json.gz --section tree --depth 4", ""),
        ("sysbench-tui inspect trace.json.gz --section steps", ""),
        ("sysbench-tui inspect trace.json.gz --steps 2-5", ""),
        ("sysbench-tui inspect trace.json.gz --section roofline --peak 989.4,3350", ""),
        ("sysbench-tui inspect snapshot.pickle --json | jq .memory.ledger", ""),
        ("sysbench-tui inspect report.sqlite --section kernels --csv > kernels.csv", ""),
        ("sysbench-tui inspect run.json.gz --capture capture.json.gz", "for CUDA graphs"),
        ("sysbench-tui inspect traces/ --merged all.json.gz", ""),
        ("sysbench-tui export trace.json.gz csv", "a CSV file for each table"),
    )
    file = parser.add_argument(
        "file", metavar="FILE", help="a file, or a folder of ranks; never modified"
    )
    complete_with(file, "file")
    parser.add_argument(
        "--section", choices=(*OF_FILES, RANKS), help="print only this section, in full"
    )
    add_table_formats(parser)
    add_wide(parser, "a section")
    add_brief(parser)
    add_no_pager(parser)
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="peak TFLOP/s and GB/s of the device, for the roofline (default: table of GPUs)",
    )
    parser.add_argument(
        "--memory-limit",
        type=size_bytes,
        default=0,
        metavar="SIZE",
        help="memory limit for decoding (default: half of this machine's, at most 16GiB)",
    )
    add_file_choice(parser)
    parser.add_argument(
        "--merged",
        type=output_path,
        metavar="OUT",
        help="for a folder: also write one merged trace on one clock, for Perfetto "
        "(.json or .json.gz)",
    )
    add_tree_options(parser)
