"""The files of a folder: their ranks, and what is refused."""

from __future__ import annotations

import gzip
import pickle
import shutil
from pathlib import Path

import pytest

from sysbench.core.errors import ForeignFileError
from sysbench.core.inspection.ranks_folder import FolderError, by_rank, rank_files, rank_in_name

TRACE = '{"traceEvents": []}'


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("trace_8_rank_1.json.gz", 1),
        ("worker.rank-12.pt.trace.json", 12),
        ("1719482000.12-TP-3.trace.json.gz", 3),
        ("r2.json", 2),
        ("host_4711.1719482000.pt.trace.json", None),
        ("trace.json", None),
        ("rank1_of_rank8.json", None),
        ("report.3.sqlite", 3),
        ("report.3.json", None),
    ],
)
def test_the_rank_is_read_from_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path("rank9") / name) == rank


def refusal(folder: Path) -> str:
    with pytest.raises(FolderError) as refused:
        rank_files(folder)
    return str(refused.value)


def test_a_folder_is_sorted_by_content(tmp_path: Path) -> None:
    for name in ("rank1.json", "rank0.json"):
        (tmp_path / name).write_text(TRACE)
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps({}, protocol=4))
    (tmp_path / "config.json").write_text('{"layers": 12}')
    (tmp_path / "notes.md").write_text("# Run")
    (tmp_path / ".hidden").write_text(TRACE)
    (tmp_path / "logs").mkdir()
    files = rank_files(tmp_path)
    assert [path.name for path in files.traces] == ["rank0.json", "rank1.json"]
    assert [path.name for path in files.snapshots] == ["rank0.pickle"]
    assert files.left_out == ["config.json", "notes.md"]


def test_what_is_no_folder_of_ranks_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert "a folder without a chrome trace" in refusal(tmp_path)
    (tmp_path / "rank0.json").write_text(TRACE)
    assert "one rank only: inspect" in refusal(tmp_path)
    (tmp_path / "a.sqlite").write_bytes(b"SQLite format 3\x00")
    assert "mixes nsys exports (a.sqlite) with chrome traces (rank0.json)" in refusal(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ForeignFileError, match="a folder of a run"):
        rank_files(tmp_path)


def test_a_packed_file_that_is_cut_off_is_not_passed_over(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(TRACE.encode()))
    assert len(rank_files(tmp_path).traces) == 3
    cut = tmp_path / "rank1.json.gz"
    cut.write_bytes(cut.read_bytes()[:-12])
    with pytest.raises(ForeignFileError, match="rank1"):
        rank_files(tmp_path)


def test_every_file_has_a_rank_of_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "rank1.json", tmp_path / "copy.json"
    assert by_rank([(one, None), (two, 0)]) == {0: two, 1: one}
    with pytest.raises(FolderError, match=r"rank 1 has two files, rank1\.json and copy\.json"):
        by_rank([(one, None), (two, 1)])
    with pytest.raises(FolderError, match="contains no rank"):
        by_rank([(two, None)])


def test_more_files_than_are_compared_are_refused(tmp_path: Path) -> None:
    first = tmp_path / "rank0.json"
    first.write_text(TRACE)
    for rank in range(1, 129):
        shutil.copy(first, tmp_path / f"rank{rank}.json")
    assert "129 files to read: at most 128 are compared" in refusal(tmp_path)
