"""A run's record, read or rebuilt from its events: the same whether live or after a crash."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from sysbench.core.errors import DamagedFileError, NewerFileError
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from sysbench.core.runs.builder import RecordBuilder


def replay_events(run: RunDirectory) -> RecordBuilder:
    """Fold the events of a run; raises DamagedFileError."""
    # lazy: it loads all findings; a record that is stored needs none
    from sysbench.core.runs.builder import RecordBuilder, known_environment

    builder = RecordBuilder(run, run.header(), known_environment(run))
    builder.take_in(run.tail())
    return builder


def load_record(run: RunDirectory) -> Record:
    """Load the record of a run; if its supervisor died before the end, rebuild and store it.

    A pass without an end is ``killed``, and so is the run, unless it had ended before. A record
    that was changed is not read but rebuilt from the events, with a finding.

    Raises:
        NewerFileError: The record is of a later version.
        DamagedFileError: The run cannot be read at all.
    """
    # Checked before reading: a supervisor that ends in between leaves a finished record.
    live = run.is_beginning() or run.is_live()
    try:
        record = run.record()
    except DamagedFileError as error:
        is_all_there_is = run.record_path.exists() and not run.events_path.exists()
        is_newer = isinstance(error, NewerFileError)
        if is_newer or not run.header_path.is_file() or is_all_there_is:
            raise
    else:
        if not live and not run.is_record_as_written():
            return _rebuild_changed(run)
        if record.status != "running" or live:
            return record
    if live:
        return replay_events(run).record()
    record = _rebuild(run)
    with suppress(OSError):  # the disk is full, or the run another user's: it is rebuilt next time
        run.write_record(record)
    return record


def _rebuild(run: RunDirectory) -> Record:
    """Rebuild the record of a run without a supervisor; raises DamagedFileError."""
    try:
        builder = replay_events(run)
        builder.abandon()
        return msgspec.structs.replace(builder.record(), ended_ns=builder.last_ns or None)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Events that were edited may contain any values of the right types.
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFileError(f"{run.events_path} does not make a record: {reason}") from error


def _rebuild_changed(run: RunDirectory) -> Record:
    if not run.events_path.is_file():
        raise DamagedFileError(f"{run.record_path} was changed, and its events are gone")
    from sysbench.core.runs.builder import RECORD_CHANGED  # lazy: as in `replay_events`

    record = _rebuild(run)
    return msgspec.structs.replace(record, findings=[RECORD_CHANGED, *record.findings])
