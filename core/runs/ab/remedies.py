"""Remedies against noise: what can be tried here, its measured effect, and what to do besides.

A remedy is tried by rounds with it interleaved with rounds without it. Nothing lasting is
changed: a variable or a set of cores is that of one process, and a locked clock is freed after
every round.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...analysis.verdict.bounds import FALSE_RATE
from ...analysis.verdict.conditions import others_load
from ...analysis.verdict.noise import Noise, Observed
from ...analysis.verdict.records import counted_ms, verdict_of
from ...analysis.verdict.spreads import LEAST_ROUNDS, SpreadChange, spread_change
from ...analysis.verdict.text import headline
from ...formatting import counted, percent, signed_percent
from ...machine.neighbours import Neighbour
from ...spec.spec import RunSpec
from .noise import Remedy
from .noise_floor import UNTREATED, Measurement, Treatment

THP_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_KEPT_BYTES = 16 * 2**30
_NOTABLE_LOAD = 0.05
_NOTABLE_STOLEN_CORES = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Facts that decide which remedies there are.

    Attributes:
        spec: What is measured, its threads written out.
        cores: Processors that this process may use.
        huge_pages: Content of the kernel's setting; empty without one.
        gpu: GPU as NVML counts; None on the CPU, or where NVML cannot identify it.
        clock_mhz: SM clock that every round of the floor reached; None where not shown.
        lock_clocks: Whether the person allows the clock to be locked.
    """

    spec: RunSpec
    cores: frozenset[int]
    huge_pages: str = ""
    gpu: int | None = None
    clock_mhz: int | None = None
    lock_clocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A remedy that can be tried here, or the reason why not.

    Attributes:
        name: Such as ``pin to cores 1-3``.
        treatment: What is done to the process.
        spec: The spec with the remedy; as without it where only the process differs.
        keep: How to have it in every run.
        why_not: Empty, or why it is not tried.
    """

    name: str
    spec: RunSpec
    treatment: Treatment = UNTREATED
    keep: str = ""
    why_not: str = ""


def _pin(here: Here) -> Offer:
    wanted = here.spec.threads
    chosen = sorted(here.cores)[-wanted:]
    if wanted >= len(here.cores):
        why = f"{counted(wanted, 'thread')} on {counted(len(here.cores), 'core')}: all are in use"
        return Offer(name="pin to cores", spec=here.spec, why_not=why)
    return Offer(
        name=f"pin to core{'s' * (wanted > 1)} {ranges(chosen)}",
        spec=here.spec,
        treatment=Treatment(cores=frozenset(chosen)),
        keep=f"`taskset -c {ranges(chosen)} sysbench-tui …`",
    )


def _fewer_threads(here: Here) -> Offer:
    threads = here.spec.threads // 2
    if not threads or here.spec.on_cuda:
        why = "the device computes" if here.spec.on_cuda else "there is only one"
        return Offer(name="fewer threads", spec=here.spec, why_not=why)
    return Offer(
        name=f"{threads} instead of {here.spec.threads} threads",
        spec=here.spec.changed(threads=threads),
        keep=f"`--set threads={threads}`",
    )


def _bind_threads(here: Here) -> Offer:
    if here.spec.threads < 2 or here.spec.on_cuda:
        why = "the device computes" if here.spec.on_cuda else "there is only one thread"
        return Offer(name="bind threads", spec=here.spec, why_not=why)
    return _variables(here, "bind each thread to a core", OMP_PROC_BIND="close", OMP_PLACES="cores")


def _keep_memory(here: Here) -> Offer:
    return _variables(
        here,
        "keep freed memory",
        MALLOC_MMAP_MAX_="0",
        MALLOC_TRIM_THRESHOLD_=str(_KEPT_BYTES),
    )


def _huge_pages(here: Here) -> Offer:
    if "[madvise]" not in here.huge_pages or here.spec.on_cuda:
        setting = re.search(r"\[(\w+)\]", here.huge_pages)
        state = f"the kernel's setting is {setting[1]}" if setting else "the kernel has none"
        why = "the device computes" if here.spec.on_cuda else state
        return Offer(name="huge pages", spec=here.spec, why_not=why)
    return _variables(here, "huge pages", THP_MEM_ALLOC_ENABLE="1")


def _lock_clocks(here: Here) -> Offer:
    def not_tried(why: str) -> Offer:
        return Offer(name="lock the SM clock", spec=here.spec, why_not=why)

    if not here.spec.on_cuda:
        return not_tried("the CPU computes")
    if here.gpu is None or here.clock_mhz is None:
        return not_tried("NVML does not show the clock of this GPU")
    if not here.lock_clocks:
        return not_tried("only with --lock-clocks, as root; it is freed after every round")
    return Offer(
        name=f"SM clock locked at {here.clock_mhz} MHz",
        spec=here.spec,
        treatment=Treatment(clock=(here.gpu, here.clock_mhz)),
        keep=f"`sudo nvidia-smi -i {here.gpu} -lgc {here.clock_mhz}`, undone by `-rgc`",
    )


OFFERS: tuple[Callable[[Here], Offer], ...] = (
    _pin,
    _fewer_threads,
    _bind_threads,
    _keep_memory,
    _huge_pages,
    _lock_clocks,
)
"""All remedies that can be tried, in the order of trying."""


def offers(here: Here) -> list[Offer]:
    """Every remedy, tried here or not."""
    return [offer(here) for offer in OFFERS]


def _variables(here: Here, name: str, **environ: str) -> Offer:
    words = " ".join(f"{key}={value}" for key, value in environ.items())
    return Offer(
        name=name,
        spec=here.spec,
        treatment=Treatment(environ=environ),
        keep=f"`export {words}`",
    )


def not_tried(offer: Offer, why: str = "") -> Remedy:
    """The remedy without figures."""
    return Remedy(name=offer.name, detail=f"not tried: {why or offer.why_not}")


def judged(offer: Offer, measurement: Measurement, trials: int) -> Remedy:
    """The remedy with its effect.

    Args:
        offer: What was tried.
        measurement: Its rounds: without it in A, with it in B.
        trials: Remedies that are tried together; they share the false rate.
    """
    a, b = measurement.record("A"), measurement.record("B")
    if a.timing is None or b.timing is None:
        return not_tried(offer, "no round has finished")
    change = spread_change(counted_ms(a.timing), counted_ms(b.timing), FALSE_RATE / trials)
    clocks = [mhz for row in b.timing.rounds if row.counts and (mhz := row.sm_clock_mhz)]
    held = offer.treatment.clock
    seen = (
        f"; the rounds read {min(clocks):.0f} to {max(clocks):.0f} MHz" if held and clocks else ""
    )
    return Remedy(
        name=offer.name,
        before=change.before,
        after=change.after,
        ratio=change.ratio,
        low=change.low,
        high=change.high,
        rounds=change.rounds,
        decided=change.decided,
        detail=f"{_effect(change, offer.keep)}; step time {headline(verdict_of(a, b))}{seen}",
    )


def _effect(change: SpreadChange, keep: str) -> str:
    sides = f"{change.rounds} rounds a side"
    if change.rounds < LEAST_ROUNDS:
        return f"not decidable: {sides} are too few, {LEAST_ROUNDS} are the least"
    if not change.decided or change.ratio is None:
        return f"not decidable with {sides}"
    if change.ratio > 1:
        return f"the spread is larger with it, by {sides}: leave it"
    return f"the spread is smaller with it, by {sides}: {keep}"


def advice(
    noise: Noise,
    observed: Sequence[Observed],
    neighbours: Sequence[Neighbour],
    stolen_cores: float,
    governor: str | None,
) -> list[Remedy]:
    """What to do that is not tried here, each with the figure behind it.

    Args:
        noise: The floor's.
        observed: Its rounds.
        neighbours: Other processes that took the most processor time meanwhile.
        stolen_cores: Cores that the hypervisor gave to other machines.
        governor: Frequency governor of the processors, where there is one.
    """
    sources = {source.name: source for source in noise.sources}
    rows: list[Remedy] = []
    between, alone = sources["between processes"], noise.inside / 1.96
    if between.low is not None and between.low > alone:
        rows.append(
            Remedy(
                name="more processes, not more steps",
                detail=f"they differ by {percent(noise.between, 2)}, of which the steps alone "
                f"explain {percent(alone, 2)} at most: `ab`, or `run --repeat`",
            )
        )
    drift = sources["drift"]
    if drift.found and drift.share is not None:
        rows.append(
            Remedy(
                name="interleave",
                detail=f"the machine changed by {signed_percent(drift.share)} meanwhile: `ab` "
                "takes turns, two runs one after the other carry the drift",
            )
        )
    touch = sources["first touch"]
    if touch.found and touch.share is not None and touch.share > 0:
        rows.append(
            Remedy(
                name="longer warm-up",
                detail=f"the first quarter of the measured steps is {signed_percent(touch.share)} "
                "against the rest: `--set warmup=50`, or more steps",
            )
        )
    loads = [load for row in observed if (load := others_load(row.round)) is not None]
    usual = sorted(loads)[len(loads) // 2] if loads else 0.0
    if sources["neighbours"].found or usual > _NOTABLE_LOAD:
        who = _named(neighbours, usual * (os.cpu_count() or 1))
        rows.append(
            Remedy(
                name="quiet the neighbours",
                detail=f"others took {percent(usual, 0)} of all cores, {who}: end them, or "
                "measure when they rest",
            )
        )
    if stolen_cores > _NOTABLE_STOLEN_CORES:
        rows.append(
            Remedy(
                name="another machine",
                detail=f"the hypervisor gave {stolen_cores:.2f} cores to other machines: only a "
                "machine of one's own, or dedicated cores, change that",
            )
        )
    if governor and governor != "performance":
        rows.append(
            Remedy(
                name="governor performance",
                detail=f"it is {governor}, and clocks follow the load: "
                "`sudo cpupower frequency-set -g performance`; it lasts, so it is not tried",
            )
        )
    return rows


def _named(neighbours: Sequence[Neighbour], cores: float) -> str:
    """Who took so many cores, as far as it is seen."""
    named = ", ".join(f"{row.name} {row.cores:.2g} cores" for row in neighbours)
    if sum(row.cores for row in neighbours) >= cores / 2:
        return f"most of it {named}"
    rest = "processes that came and went, or that cannot be seen from here"
    return f"most of it by {rest} (seen: {named})" if named else f"by {rest}"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted whole numbers as ``1-3,7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
