"""Which file a timeline is read from, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.inspection.lanes_reading import LanesReading
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.trace.lanes import LANES_FILE, encode_lanes, lanes_of
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from tests.core.conftest import TraceWriter

GEMM = "ampere_sgemm_128x64_tn"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "20261121-120000-tiny-cpu0")
    run.pass_folder("trace").mkdir(parents=True)
    return run


def test_a_file_is_decoded_and_a_run_has_its_own(
    writer: TraceWriter, run: RunDirectory, sysbench_home: Path
) -> None:
    writer.launch(0, GEMM, 10, 20)
    path = writer.write()
    trace = read_trace(path)
    data = encode_lanes(lanes_of(trace, time_ledger(trace)))
    (run.pass_folder("trace") / LANES_FILE).write_bytes(data)
    for source in (run, path):
        assert encode_lanes(LanesReading(source).run(lambda step: None)) == data


def test_a_run_without_files_names_both(run: RunDirectory) -> None:
    words = rf"^{run.id} has neither trace/lanes\.msgpack nor trace/trace\.json\.gz$"
    with pytest.raises(NotFoundError, match=words):
        LanesReading(run).run(lambda step: None)


@pytest.mark.parametrize("name", [LANES_FILE, "trace.json.gz"])
def test_links_out_of_a_run_are_refused(name: str, run: RunDirectory, writer: TraceWriter) -> None:
    writer.launch(0, GEMM, 10, 20)
    (run.pass_folder("trace") / name).symlink_to(writer.write())
    with pytest.raises(DamagedFileError, match=name):
        LanesReading(run).run(lambda step: None)


def test_a_file_without_times_has_no_timeline(shared_data: Path, sysbench_home: Path) -> None:
    path = shared_data / "snapshots" / "allocator_test.pickle"
    with pytest.raises(NotFoundError, match="has no times of kernels or operators"):
        LanesReading(path).run(lambda step: None)
