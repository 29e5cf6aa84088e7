"""Tells what the memory pass had recorded when memory ran out."""

from __future__ import annotations

import msgspec

from ..analysis.memory.oom import what_was_alive
from ..analysis.memory.owners import Notes
from ..errors import SysbenchError
from ..record.events import Noticed, ResultReported, StageEntered
from ..runs.directory import write_atomically
from ..runs.job import Job, Report
from .memory.cpu_recorder import CpuRecorder
from .memory.cuda_recorder import CudaRecorder


def report_alive(
    job: Job, recorder: CudaRecorder | CpuRecorder, notes: Notes, report: Report
) -> None:
    """Write the artifacts of a recording that ended early, and report what was alive.

    That memory ran out must be told whatever happens here: what goes wrong is a notice.
    """
    report(StageEntered(stage="export"))
    try:
        write_atomically(job.path / "notes.json", msgspec.json.encode(notes))
        recording = recorder.export()
        report(StageEntered(stage="analyse"))
        alive = what_was_alive(recording, notes)
    except (OSError, MemoryError, RuntimeError, SysbenchError, msgspec.DecodeError) as error:
        report(Noticed(message=f"what was alive is not known: {type(error).__name__}: {error}"))
        return
    report(ResultReported(block="oom", data=msgspec.to_builtins(alive)))
