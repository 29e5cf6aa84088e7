"""All rules, and the findings of a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sysbench.core.compare.rounds import inside
from sysbench.core.findings import host_rules as hosts
from sysbench.core.findings import job_rules as jobs
from sysbench.core.findings import kernels_rules as kernels
from sysbench.core.findings import measuring_rules as measuring
from sysbench.core.findings import memory_rules as memory
from sysbench.core.findings import operator_rules as operators
from sysbench.core.findings import ranks_rules as ranks
from sysbench.core.formatting import percent, signed_percent
from sysbench.core.record.record import SEVERITIES, Finding, Record

Rule = Callable[[Record], Finding | None]
RULES: tuple[Rule, ...] = (
    *measuring.RULES,
    *kernels.RULES,
    *memory.RULES,
    *ranks.RULES,
)

DISTURBANCES = {
    "not-settled": "noisy",
    "drifting": "drift",
    "lost-rounds": "excluded rounds",
    "other-tenants": "other processes on the device",
    "busy-machine": "other processes on the CPU",
    "clock-held": "clock limited",
    "tracing-perturbed": "tracing changed the step",
    "low-coverage": "incomplete trace",
    "clocks-disagree": "clocks differ",
}
"""Rules on what disturbed the measurement, in a few words; their findings are shown together."""

TIME_RULES: frozenset[Rule] = frozenset(
    {
        *(measuring.not_settled, measuring.steps_repeat, measuring.drifting, measuring.clock_held),
        *(kernels.tracing_perturbed, kernels.launch_bound, kernels.idle_on_sync),
        *(kernels.category_out_of_line, kernels.faster_than_peak),
        kernels.heavy_optimizer,
        *(ranks.straggler, ranks.exposed, ranks.clocks_disagree),
    }
)
"""Rules that use times and clocks, which mean nothing on a simulated device."""


OF_JOBS: tuple[Rule, ...] = (
    memory.command_out_of_memory,
    *(rule for rule in measuring.RULES if rule is not measuring.ended_early),
    *(kernels.tracing_perturbed, *jobs.RULES, memory.memory_grows, *hosts.RULES),
)
"""Rules on a user's command, which ends as it likes and whose settings are its own."""


def findings_of(record: Record) -> list[Finding]:
    """The findings of all rules, most severe first."""
    if record.job is not None:
        from sysbench.core.findings.files_rules import (  # lazy: numpy
            LOADER_RULE,
            findings_of_file,
        )

        traced = findings_of_file(record.kernels) if record.kernels else []
        # All steps of the command say more about its loader than the traced ones, and the limits of
        # categories are those of GPUs.
        is_host = record.kernels is not None and record.kernels.source == "operators"
        left_out = (LOADER_RULE, *(("category-out-of-line",) if is_host else ()))
        findings = [
            *_found(OF_JOBS, record),
            *(found for found in traced if found.rule not in left_out),
            *(
                found
                for rule in operators.RULES
                if record.kernels and (found := rule(record.kernels)) is not None
            ),
        ]
        findings.sort(key=lambda finding: -finding.cost)
    else:
        findings = _found((*RULES, all_is_well), record)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _found(rules: Sequence[Rule], record: Record) -> list[Finding]:
    no_times = measuring.null_gpu(record) is not None
    used = [rule for rule in rules if not (no_times and rule in TIME_RULES)]
    return [finding for rule in used if (finding := rule(record)) is not None]


def all_is_well(record: Record) -> Finding | None:
    """No rule has a finding, but on where the time goes: the precision of the step time."""
    timing = record.timing
    if timing is None or any(found.cost == 0 for rule in RULES if (found := rule(record))):
        return None
    half_width, step = percent(timing.step.half_width, 2), inside(timing)
    if timing.interval_of == "rounds":
        precision = f"±{half_width} over {timing.step.n} processes"
        steps = f"{step.n} steps in the median process"
    else:
        precision, steps = f"±{half_width} in this process", f"{step.n} steps"
    telemetry = record.telemetry
    looked = telemetry is not None and "other_processes" not in telemetry.missing
    alone = ", no other process on the device" if looked and record.spec["device"] != "cpu" else ""
    return Finding(
        rule="trustworthy",
        severity="good",
        verdict=f"{timing.step.median_ms:.4g} ms per step, {precision}.",
        why=f"{steps} after {len(timing.warmup_ms)} of warm-up, drift "
        f"{signed_percent(step.drift, 2)}{alone}.",
        next="Change one factor and compare.",
        numbers={"median_ms": timing.step.median_ms, "half_width": timing.step.half_width},
    )
