"""Files of a run that are gone, torn or changed: figures come from its events or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import DamagedFileError, NewerFileError
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.runs.supervisor import disturb_round


@pytest.fixture
def finished(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """A copy of a finished run, to be damaged."""
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


def test_a_record_that_is_gone_is_rebuilt_with_its_environment(finished: RunDirectory) -> None:
    before = finished.record()
    finished.record_path.unlink()
    rebuilt = load_record(finished)
    assert rebuilt.environment == before.environment
    assert rebuilt.timing == before.timing


def change(run: RunDirectory, factor: float) -> None:
    """Make the run faster with an editor."""
    record = json.loads(run.record_path.read_bytes())
    record["timing"]["step"]["median_ms"] *= factor
    run.record_path.write_text(json.dumps(record))


def test_a_record_that_was_changed_by_hand_is_not_believed(finished: RunDirectory) -> None:
    before = finished.record()
    assert load_record(finished) == before
    change(finished, 0.5)
    edited = finished.record_path.read_bytes()
    read = load_record(finished)
    assert read.timing == before.timing
    assert (read.findings[0].rule, read.findings[1:]) == ("record-changed", before.findings)
    assert finished.record_path.read_bytes() == edited, "a person's file is not replaced"
    assert before.timing is not None
    (entry,) = Library().entries()
    assert entry.median_ms == before.timing.step.median_ms
    finished.record_path.unlink()
    assert load_record(finished) == before


def test_events_that_cannot_be_read_are_a_finding_of_the_rebuilt_record(
    finished: RunDirectory,
) -> None:
    before = finished.record()
    lines = finished.events_path.read_bytes().splitlines(keepends=True)
    sampled = next(n for n, line in enumerate(lines) if b'"TelemetrySampled"' in line)
    finished.events_path.write_bytes(b"".join([*lines[:sampled], b"\x00\n", *lines[sampled + 1 :]]))
    finished.record_path.unlink()
    rebuilt = load_record(finished)
    assert (rebuilt.status, rebuilt.timing) == (before.status, before.timing)
    finding = rebuilt.findings[0]
    assert (finding.rule, finding.numbers) == ("events-damaged", {"lines": 1})
    assert load_record(finished) == rebuilt, "it stays in the stored record"


def test_a_round_that_is_added_after_a_crash_keeps_what_was_lost_in_sight(
    finished: RunDirectory,
) -> None:
    with finished.events_path.open("ab") as file:
        file.write(b'{"event":"StepsTimed","first')
    disturb_round(finished, 1, "a test")
    assert finished.record().findings[0].rule == "events-damaged"


def test_a_changed_record_of_a_run_without_events_is_refused(finished: RunDirectory) -> None:
    finished.events_path.unlink()
    assert load_record(finished).timing
    change(finished, 0.5)
    with pytest.raises(DamagedFileError, match="changed"):
        load_record(finished)


def test_a_crash_between_digest_and_record_accuses_nobody(
    finished: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished.record()
    replaced = os.replace

    def crash(source: Path, target: Path) -> None:
        if target == finished.record_path:
            raise KeyboardInterrupt
        replaced(source, target)

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(KeyboardInterrupt):
        finished.write_record(msgspec.structs.replace(before, parameters=1))
    assert load_record(finished) == before


def test_a_record_of_a_later_version_is_refused_and_stays(finished: RunDirectory) -> None:
    record = json.loads(finished.record_path.read_bytes())
    later = json.dumps(record | {"schema": 99, "timing": {"of": "another shape"}}).encode()
    finished.record_path.write_bytes(later)
    with pytest.raises(NewerFileError, match="schema 99"):
        load_record(finished)
    assert Library().entries() == []
    assert finished.record_path.read_bytes() == later


def test_a_torn_record_of_a_run_without_events_is_refused_and_stays(finished: RunDirectory) -> None:
    finished.events_path.unlink()
    torn = finished.record_path.read_bytes()[:-100]
    finished.record_path.write_bytes(torn)
    with pytest.raises(DamagedFileError):
        load_record(finished)
    assert finished.record_path.read_bytes() == torn


def test_torn_and_foreign_event_lines_are_skipped_and_counted(finished: RunDirectory) -> None:
    record = finished.record()
    whole = len(list(finished.tail().read()))
    with finished.events_path.open("ab") as file:
        file.write(b'{"event":"Martian","t_ns":1}\n\xff\xfe\n{"event":"RunEnded","sta')
    tail = finished.tail()
    assert len(list(tail.read())) == whole
    assert tail.skipped == 2
    finished.record_path.unlink()
    rebuilt = load_record(finished)
    assert rebuilt.timing == record.timing
    assert rebuilt.status == "finished"


def test_a_record_cut_in_half_is_rebuilt_from_the_events(finished: RunDirectory) -> None:
    data = finished.record_path.read_bytes()
    record = finished.record()
    finished.record_path.write_bytes(data[: len(data) // 2])
    assert load_record(finished).timing == record.timing


@pytest.mark.parametrize("damage", [None, b"", b"not a database" * 100])
def test_the_library_is_rebuilt_when_missing_or_damaged(
    finished: RunDirectory, damage: bytes | None
) -> None:
    before = Library().entries()
    assert len(before) == 1
    if damage is None:
        Library().path.unlink()
    else:
        Library().path.write_bytes(damage)
    assert Library().entries() == before
