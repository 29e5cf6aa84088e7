"""`run`: measure a spec, attached or detached."""

from __future__ import annotations

import argparse

from sysbench.core.machine.peaks import parse_peak
from sysbench.core.record.blocks import DEFAULT_PASSES, STEP_PASSES
from sysbench.core.runs.run_directory import create_run
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.tui.commands.arguments import examples
from sysbench.tui.commands.output import print_json, say
from sysbench.tui.commands.spec_arguments import (
    add_spec_arguments,
    chosen_passes,
    chosen_spec,
    spec_keys,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the spec, its passes, and the options of the start."""
    parser.description = (
        "Measure a spec. Each pass is a separate process; progress goes to stderr, the\n"
        "report (or with --json the record, as one JSON document) to stdout."
    )
    lines = examples(
        ("sysbench-tui run", "the default spec, all passes"),
        ("sysbench-tui run cs336-2025/small precision=bf16 context=512", "a model, two keys"),
        ("sysbench-tui run nano.py:make model.layers=4", "a model of yours"),
        ("sysbench-tui run mine.toml batch=8 --passes timing", "a file, one change"),
        ("sysbench-tui run --repeat 5", "time it in five processes, one after another"),
        ("sysbench-tui run --json > record.json", "for scripts"),
        ("sysbench-tui run --detach", "return at once; `attach last` follows it"),
    )
    parser.epilog = f"{lines}\n\n{spec_keys()}"
    add_spec_arguments(parser)
    parser.add_argument(
        "--passes",
        metavar="LIST",
        help=f"passes to run, with commas (default: {','.join(DEFAULT_PASSES)}; there is also "
        f"{', '.join(name for name in STEP_PASSES if name not in DEFAULT_PASSES)})",
    )
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="dense peak of the device in this precision, and its memory's bandwidth: for MFU "
        "and shares of the roof (default: the table of GPUs, and what the device says)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help=f"time the steps in N processes, 1 to {MAX_ROUNDS}; the step's interval is then "
        "that of the processes (default: 1)",
    )
    parser.add_argument("--detach", action="store_true", help="start it and return at once")
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run; 0 when finished, 130 when cancelled, 1 otherwise."""
    from sysbench.core.runs.job_directory import Cancellation
    from sysbench.core.runs.supervisor import supervise
    from sysbench.tui.commands.output import cancelled_by_signals
    from sysbench.tui.commands.progress import Progress, RunFold
    from sysbench.tui.commands.run_report import print_ending

    spec = chosen_spec(arguments)
    passes = chosen_passes(arguments, spec)
    peak = None if arguments.peak is None else parse_peak(arguments.peak)
    run = create_run(spec, passes, peak=peak, repeat=arguments.repeat)
    if arguments.detach:
        pid = run.start()
        if arguments.json:
            print_json({"id": run.id, "pid": pid, "path": str(run.path)})
        else:
            say(f"{run.id} started, process {pid}")
            say(f"follow it with `sysbench-tui attach {run.id}`, end it with `stop`")
        return 0
    cancel = Cancellation()
    with cancelled_by_signals(cancel), Progress(RunFold(), json=arguments.json) as progress:
        for event in supervise(run, wait=not arguments.no_wait, cancel=cancel):
            progress.show(event)
    return print_ending(run, json=arguments.json)
