"""Tables of times say which interval they quote, and list the rounds."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.compare.rounds import combined, with_times
from sysbench.core.compare.statistics import spread
from sysbench.core.findings.findings_rules import findings_of
from sysbench.core.findings.measuring_rules import drifting, lost_rounds
from sysbench.core.record.job import WatchedJob
from sysbench.core.record.timing import Round, Timing
from sysbench.core.runs.library import entry_of
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.formula import MEASURES
from sysbench.core.tables.timing_tables import (
    interval_words,
    known_words,
    rounds_table,
    timing_table,
)
from sysbench.core.tables.trust import trust_lines
from tests import factories
from tests.factories import table_named


def rounds(*medians: float, **of_last: object) -> Timing:
    """The block of rounds of twelve steps each, whose times grow by the step in every process."""
    processes = {
        index: factories.timing(
            spread(samples := [median + number / 1e3 for number in range(-6, 6)]),
            samples_ms=samples,
        )
        for index, median in enumerate(medians, 1)
    }
    listed = [
        with_times(Round(index=index, started_ns=index, outcome="finished"), timing)
        for index, timing in processes.items()
    ]
    changed = {**{"tenants": ["python (7)"], "cpu_percent": 80.0}, **of_last}
    listed[-1] = Round(**{name: getattr(listed[-1], name) for name in Round.__struct_fields__}
                       | changed)  # fmt: skip
    block = combined(listed, processes)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("count", "words"),
    [(2, "range of 2 processes"), (5, "range of 5 processes"), (6, "95 % interval of 6 processes")],
)
def test_an_interval_of_rounds_is_called_95_percent_only_where_it_is(
    count: int, words: str
) -> None:
    timing = rounds(*(10.0 + index for index in range(count)))
    assert interval_words(timing) == words
    assert timing_table(timing).title.endswith(words)
    assert dict(trust_lines(factories.record(timing=timing)))["step"].count(words) == 1


def test_a_watched_command_is_not_called_settled() -> None:
    timing = factories.timing(factories.spread(10.0, 9.9, 10.1, n=40))
    timing = msgspec.structs.replace(timing, settled=True, stop_reason="it ended with code 0")
    job = WatchedJob(
        command=["python"], exit_code=0, wall_ms=400.0, world_size=1, ranks=[], steps=[]
    )
    steady = (
        dict(trust_lines(factories.record(timing=timing, job=one)))["steady"] for one in (job, None)
    )
    watched, run = steady
    assert watched.startswith("it ended with code 0; ")
    assert run == f"settled: {watched}"


def test_a_single_process_is_called_one() -> None:
    single = factories.timing(factories.spread(10.0, 9.9, 10.1, n=40))
    assert timing_table(single).title.endswith("95 % interval inside one process")
    assert known_words(single) == "of 40 steps in one process"
    assert rounds_table(single).rows == ()
    record = factories.record(timing=single)
    assert entry_of(record).rounds == 1
    (good,) = findings_of(record)
    assert good.verdict == "10 ms per step, ±1.00 % in this process."


def test_rounds_are_told_wherever_their_time_is() -> None:
    timing = rounds(10.0, 10.4, 10.2)
    record = factories.record(timing=timing)
    table = table_named(record, "rounds")
    assert table.column("round") == [1, 2, 3]
    assert table.column("n") == [12, 12, 12]
    assert table.column("tenants") == ["", "", "python (7)"]
    assert table.column("cpu_percent") == [None, None, 80.0]
    assert "why_not" not in table.columns  # every round counts
    steps = {row[0]: row for row in table_named(record, "timing").rows}
    assert [name for name in steps] == ["step", "forward", "all steps"]
    assert [row[:2] for row in table_named(record, "speed").rows[:2]] == [
        ("interval", "range of 3 processes"),
        ("of_round", 3),
    ]
    assert entry_of(record).rounds == 3
    assert [MEASURES[name].read(record) for name in ("rounds", "timed_steps")] == [3, 36]
    (good,) = findings_of(record)
    assert good.verdict == "10.2 ms per step, ±1.96 % over 3 processes."
    assert good.why.startswith("12 steps in the median process")


def test_drift_is_judged_inside_a_process_and_not_from_round_to_round() -> None:
    slower_every_time = factories.record(timing=rounds(*(10.0 + index for index in range(12))))
    assert drifting(slower_every_time) is None
    inside_each = rounds(0.02, 0.02)  # 14 to 25 microseconds a step: each process slows down
    found = drifting(factories.record(timing=inside_each))
    assert found is not None
    assert found.why.endswith("in round 1.")


def test_a_round_that_does_not_count_is_told_with_its_reason() -> None:
    record = factories.record(timing=rounds(10.0, 10.2, 10.4, disturbed="a neighbour"))
    finding = lost_rounds(record)
    assert finding is not None
    assert finding.verdict == "1 of 3 rounds was excluded."
    assert finding.why == "round 3: a neighbour."
    table = table_named(record, "rounds")
    assert table.column("counts") == [True, True, False]
    assert table.column("why_not") == ["", "", "a neighbour"]
    assert entry_of(record).rounds == 2
    assert lost_rounds(factories.record(timing=rounds(10.0, 10.2))) is None


def test_the_command_of_a_run_repeats_it() -> None:
    spec = RunSpec(model="tiny")
    assert command_line(spec, None, 5) == f"{command_line(spec)} --repeat 5"
    assert "--repeat" not in command_line(spec, None, 1)
    assert command_line(spec, python="/ml/bin/python").endswith(" --python /ml/bin/python")
