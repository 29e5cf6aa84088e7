"""Real comparisons of `tiny` on this machine, for the tables of ``verdicts.md``.

``python -m tests.validation.measure_verdicts false 40`` compares the spec with itself 40 times;
``… power 20`` first measures a noise floor, then compares it 20 times for each slowdown with a
side B whose steps wait in a busy loop for that share of the step. Results are appended to
``verdicts.jsonl`` in the home, a fresh folder unless SYSBENCH_HOME names one.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec

from sysbench.core.compare.compared_records import counted_ms
from sysbench.core.compare.power import power_after
from sysbench.core.compare.verdict import Verdict
from sysbench.core.experiments.experiment import ExperimentDirectory, create_experiment
from sysbench.core.experiments.experiment_runner import Judged, RoundStarting, run_experiment
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import create_run, load_record
from sysbench.core.runs.supervisor import add_round
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec

FALSE_BLOCKS, POWER_BLOCKS = 5, 12
FLOOR_ROUNDS = 24
SLOWDOWNS = (0.10, 0.05, 0.03, 0.02)
EXTRA = "SYSBENCH_VALIDATION_EXTRA_NS"
HOOK = f'''
import os, sys
if os.environ.get("{EXTRA}"):
    import importlib.abc, importlib.util, time

    class Slower(importlib.abc.MetaPathFinder):
        """Adds a busy wait to the forward phase of the timed workload."""

        def find_spec(self, name, path, target=None):
            if name != "sysbench.core.worker.passes.timing_pass":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                time_steps = module.time_steps

                def slower(workload, clock, report):
                    step, extra = workload.step, int(os.environ["{EXTRA}"])

                    def longer(enter):
                        def entering(phase):
                            enter(phase)
                            if phase == "forward":
                                end = time.perf_counter_ns() + extra
                                while time.perf_counter_ns() < end:
                                    pass
                        step(entering)

                    workload.step = longer
                    return time_steps(workload, clock, report)

                module.time_steps = slower

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Slower())
'''


def the_spec() -> RunSpec:
    """A step of some ten milliseconds, timed for half a second."""
    spec = RunSpec(model="tiny", device="cpu", batch=2, context=64, warmup=5, max_seconds=0.5)
    return resolve(spec)


def compared(
    spec: RunSpec, seed: int, most_blocks: int, extra_ns: int = 0
) -> tuple[Verdict, ExperimentDirectory]:
    """One comparison with a limit on blocks; B's steps are longer by ``extra_ns``."""
    experiment = create_experiment(spec, spec, seed=seed, max_minutes=1e3, method="blocks")
    cancel = Cancellation()
    verdict = None
    for item in run_experiment(experiment, cancel=cancel):
        match item:
            case RoundStarting():
                os.environ[EXTRA] = str(extra_ns) if item.side == "B" and extra_ns else ""
            case Judged():
                verdict = item.verdict
                if item.blocks >= most_blocks:
                    cancel.set()
            case _:
                pass
    if verdict is None:
        raise SystemExit(f"experiment {experiment.id} was not judged")
    return verdict, experiment


def floor_of(spec: RunSpec) -> tuple[list[float], float]:
    """Log medians of fresh processes in their order, and their median in milliseconds."""
    run = create_run(spec, ["timing"])
    for _ in range(FLOOR_ROUNDS):
        for _ in add_round(run):
            pass
    timing = load_record(run).timing
    if timing is None:
        raise SystemExit("the noise floor has no timing")
    medians = counted_ms(timing)
    return [math.log(median) for median in medians], statistics.median(medians)


def keep(**facts: object) -> None:
    """Append a line to the results, and show it."""
    line = msgspec.json.encode(facts | {"load": os.getloadavg()[0]})
    with Path(os.environ["SYSBENCH_HOME"], "verdicts.jsonl").open("ab") as file:
        file.write(line + b"\n")
    print(line.decode(), flush=True)


def main() -> None:
    """Run the part that the command line names."""
    part, count = sys.argv[1], int(sys.argv[2])
    os.environ.setdefault("SYSBENCH_HOME", tempfile.mkdtemp(prefix="verdicts-"))
    spec = the_spec()
    if part == "false":
        for seed in range(count):
            verdict, experiment = compared(spec, seed, FALSE_BLOCKS)
            keep(slowdown=0, verdict=verdict, experiment=experiment.id)
        return
    hook = Path(tempfile.mkdtemp(prefix="slower-"))
    (hook / "sitecustomize.py").write_text(HOOK)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(hook), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    for slowdown in SLOWDOWNS:
        os.environ[EXTRA] = ""
        floor, step_ms = floor_of(spec)
        promised = power_after(floor, slowdown, POWER_BLOCKS)[-1]
        for seed in range(count):
            extra_ns = round(slowdown * step_ms * 1e6)
            verdict, experiment = compared(spec, seed, POWER_BLOCKS, extra_ns)
            keep(slowdown=slowdown, promised=promised, verdict=verdict, experiment=experiment.id)


if __name__ == "__main__":
    main()
