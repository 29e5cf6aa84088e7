"""Decoding in a process of its own: what comes out, what is kept, and how it may end."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from sysbench.core.errors import ForeignFileError
from sysbench.core.inspection import reading
from sysbench.core.inspection.decoding import Decoding, DecodingCancelled
from sysbench.core.inspection.entries import MAX_ENTRIES, entries_folder, forget_oldest
from sysbench.core.inspection.inspection import Inspection, Progressed
from sysbench.core.record.record import KernelRow
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.run_directory import RunDirectory

WAIT_SECONDS = 60.0


def ignore(step: Progressed) -> None:
    pass


def inspected(path: Path, limit_bytes: int = 0) -> Inspection:
    return Decoding(path, limit_bytes).run(ignore)


def refusal(path: Path, limit_bytes: int = 0) -> str:
    with pytest.raises(ForeignFileError) as caught:
        inspected(path, limit_bytes)
    return str(caught.value)


def decoders() -> list[psutil.Process]:
    """Return the children of this process that decode, without those of other tests."""
    name = "sysbench.core.inspection"
    return [child for child in psutil.Process().children() if name in child.cmdline()]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class TestTables:
    def test_our_own_trace_reads_as_the_run_did(self, tiny_run: RunDirectory) -> None:
        def facts(rows: list[KernelRow]) -> list[object]:
            return [(one.name, one.phase, one.module, one.calls, one.total_ns) for one in rows]

        decoding = Decoding(tiny_run.trace_path)
        found = decoding.run(ignore)
        ours = tiny_run.record()
        assert found.kernels is not None and ours.kernels is not None
        assert facts(found.kernels.rows) == facts(ours.kernels.rows)
        assert found.kernels.phases_ns == ours.kernels.phases_ns
        assert found.memory is None and "memory" in found.missing
        layers = layer_rows(decoding.entry.as_run, found.as_record())
        of_run = layer_rows(tiny_run, ours)
        assert layers is not None and of_run is not None
        assert facts(layers.rows) == facts(of_run.rows)

    def test_a_snapshot_has_the_memory_block(self, snapshot: Path) -> None:
        found = inspected(snapshot)
        assert found.kind == "memory-snapshot" and found.kernels is None
        assert found.memory is not None
        assert found.memory.peak_allocated_bytes == 1024 + 2048
        assert found.memory.events == 3

    def test_an_export_has_kernels_ranges_and_clocks(self, export: Path) -> None:
        found = inspected(export)
        assert found.kernels is not None and found.nvtx is not None and found.clocks is not None
        assert [(one.name, one.total_ns) for one in found.kernels.rows] == [("gemm_kernel", 700)]
        (row,) = found.nvtx.rows
        assert (row.range, row.instances, row.projected_ns) == ("forward", 1, 700)
        assert (found.clocks.span_ns, found.clocks.busy_ns) == (700, 700)
        assert found.as_record().nsys is not None

    def test_of_very_many_ranges_the_longest_are_kept(
        self, export: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(sqlite3.connect(export)) as database:
            database.execute(
                "INSERT INTO NVTX_EVENTS SELECT 490, 610, 59, 'aten::mm, op_id = 1', NULL, "
                "globalTid, NULL, 0 FROM NVTX_EVENTS"
            )
            database.commit()
        monkeypatch.setattr(reading, "MAX_RANGES", 1)
        found = reading.read_tables(export, lambda stage, done, total: None).inspection
        assert found.nvtx is not None and found.nvtx.ranges == 2
        assert len(found.nvtx.rows) == 1 and found.missing["nvtx.rows"] == "the first 1 of 2"

    def test_a_name_that_is_no_text_is_made_visible(self, trace: Path) -> None:
        odd = trace.rename(Path(os.fsdecode(os.fsencode(trace) + b"\xff")))
        assert inspected(odd).file.endswith("trace.json\\udcff")


class TestEntries:
    def test_a_second_look_decodes_nothing(self, trace: Path) -> None:
        first: list[Progressed] = []
        second: list[Progressed] = []
        found = Decoding(trace).run(first.append)
        assert [step.stage for step in first] == ["decode", "analyse"]
        assert first[0].share == 1
        assert Decoding(trace).run(second.append) == found
        assert not second

    def test_the_rows_of_an_export_are_told(self, long_export: Path) -> None:
        progress: list[Progressed] = []
        Decoding(long_export).run(progress.append)
        assert [step.stage for step in progress[-2:]] == ["rows", "analyse"]
        shares = [step.share for step in progress[:-1]]
        assert len(shares) > 1 and None not in shares
        assert {step.total for step in progress[:-1]} == {300_000 + 4}

    def test_a_changed_file_is_decoded_anew(self, trace: Path) -> None:
        before = inspected(trace)
        text = trace.read_text()
        trace.write_text(text.replace('"dur": 5', '"dur": 6'))
        os.utime(trace, ns=(1, 1))  # the same size; and however coarse the clock
        after = inspected(trace)
        assert before.kernels is not None and after.kernels is not None
        assert (before.kernels.busy_ns, after.kernels.busy_ns) == (50_000, 60_000)

    def test_a_changed_file_with_the_old_ones_size_and_time_is_decoded_anew(
        self, trace: Path
    ) -> None:
        before, stamps = inspected(trace), trace.stat()
        trace.write_text(trace.read_text().replace('"dur": 5', '"dur": 6'))
        os.utime(trace, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
        assert inspected(trace) != before

    def test_a_file_that_changes_meanwhile_is_refused(self, trace: Path) -> None:
        decoding = Decoding(trace)
        with trace.open("a") as file:
            file.write("\n")
        with pytest.raises(ForeignFileError, match="changed while it was read"):
            decoding.run(ignore)
        assert inspected(trace).kernels is not None

    def test_a_damaged_entry_is_made_again(self, trace: Path) -> None:
        decoding = Decoding(trace)
        found = decoding.run(ignore)
        decoding.entry.inspection_path.write_text("{")
        assert inspected(trace) == found

    def test_only_the_newest_are_kept(self, trace: Path) -> None:
        folder = entries_folder()
        for number in range(MAX_ENTRIES + 3):
            (folder / str(number)).mkdir(parents=True)
            os.utime(folder / str(number), (number, number))
        inspected(trace)
        names = {path.name for path in folder.iterdir()}
        assert len(names) == MAX_ENTRIES
        assert not names & {"0", "1", "2", "3"}

    def test_the_newest_are_kept_as_far_as_their_bytes_go(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sysbench.core.inspection.entries.MAX_KEPT_BYTES", 100)
        folder = entries_folder()
        for age, size in enumerate((120, 10, 10)):
            tables = folder / str(age) / "trace" / "kernels.json"
            tables.parent.mkdir(parents=True)
            tables.write_bytes(bytes(size))
            os.utime(folder / str(age), (1000 - age, 1000 - age))
        forget_oldest()
        assert {path.name for path in folder.iterdir()} == {"0"}, "the newest alone takes more"
        (folder / "0" / "trace" / "kernels.json").write_bytes(bytes(40))
        for age, size in enumerate((0, 30, 30, 30, 0)):
            (folder / str(age)).mkdir(exist_ok=True)
            (folder / str(age) / "rank.msgpack").write_bytes(bytes(size))
            os.utime(folder / str(age), (1000 - age, 1000 - age))
        forget_oldest()
        assert {path.name for path in folder.iterdir()} == {"0", "1", "2"}

    def test_every_file_of_a_run_gives_tables_or_a_reason(self, tiny_run: RunDirectory) -> None:
        read = []
        for path in filter(Path.is_file, tiny_run.path.rglob("*")):
            try:
                inspected(path)
            except ForeignFileError as error:
                assert str(error).startswith(str(path)), error
            else:
                read.append(path.name)
        assert sorted(read) == ["allocations.json.gz", "trace.json.gz"]


class TestRefusals:
    def test_cut_off_files(self, trace: Path, snapshot: Path, export: Path) -> None:
        for path, reason in (
            (trace, "not a valid chrome trace"),
            (snapshot, "not a memory snapshot"),
            (export, "not a valid nsys export|malformed|did not export"),
        ):
            data = path.read_bytes()
            path.write_bytes(data[: len(data) * 2 // 3])
            with pytest.raises(ForeignFileError, match=reason):
                inspected(path)

    def test_a_packed_trace_that_is_cut_off_says_so(
        self, tiny_run: RunDirectory, tmp_path: Path
    ) -> None:
        path = tmp_path / "torn.json.gz"
        data = tiny_run.trace_path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        assert "it is truncated (copy or record it again" in refusal(path)

    @pytest.mark.parametrize(
        "text",
        [
            '{"record": 1}',
            '{"traceEvents": 5}',
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1e400}]}',
            '[{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1e300}]',
            '{"traceEvents": ' + "[" * 100_000,
            '[{"ph": "X", "cat": "kernel", "args": {"correlation": {}}, "ts": []}]',
        ],
    )
    def test_json_that_is_no_trace(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "other.json"
        path.write_text(text)
        assert str(path) in refusal(path)

    def test_a_pickle_runs_nothing(self, tmp_path: Path) -> None:
        path, proof = tmp_path / "hostile.pickle", tmp_path / "proof"

        class Hostile:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return os.mkdir, (str(proof),)

        path.write_bytes(pickle.dumps({"segments": Hostile(), "device_traces": []}))
        assert "posix.mkdir" in refusal(path)
        assert not proof.exists()

    @pytest.mark.parametrize(
        "data",
        [
            b"\x80\x04\x8e" + (2**40).to_bytes(8, "little"),  # BINBYTES8 of a terabyte
            b"\x80\x04\x8b" + (2**31 - 1).to_bytes(4, "little"),  # LONG4
            b"\x80\x04r\xff\xff\xff\x7f.",  # LONG_BINPUT: a memo of 2^31 places
            b"\x80\x04" + b"(" * 1000 + b".",
        ],
    )
    def test_claims_of_size_are_not_believed(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "claims.pickle"
        path.write_bytes(data)
        assert str(path) in refusal(path)

    def test_the_memory_limit_holds_and_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "large.pickle"
        path.write_bytes(pickle.dumps([[number] for number in range(600_000)]))
        reason = refusal(path, limit_bytes=32 * 2**20)
        assert "more than 32.0 MiB of memory" in reason and "--memory-limit" in reason

    def test_the_same_file_may_be_tried_with_another_limit(self, long_trace: Path) -> None:
        refusal(long_trace, limit_bytes=8 * 2**20)
        assert inspected(long_trace).kernels is not None

    def test_a_killed_process_is_told(self, long_trace: Path) -> None:
        def kill(step: Progressed) -> None:
            for child in decoders():
                child.kill()

        with pytest.raises(ForeignFileError, match="killed"):
            Decoding(long_trace).run(kill)


class TestCancelling:
    @pytest.mark.parametrize("kind", ["long_trace", "long_export"])
    def test_cancel_ends_the_process(self, kind: str, request: pytest.FixtureRequest) -> None:
        decoding = Decoding(request.getfixturevalue(kind))
        seen: list[psutil.Process] = []

        def cancel(step: Progressed) -> None:
            seen.extend(decoders())
            decoding.cancel()

        with pytest.raises(DecodingCancelled) as caught:
            decoding.run(cancel)
        assert caught.value.exit_code == 130
        assert seen and not any(process.is_running() for process in seen)
        assert not decoding.entry.inspection_path.exists()

    def test_cancel_before_the_start_is_heeded(self, trace: Path) -> None:
        decoding = Decoding(trace)
        decoding.cancel()
        with pytest.raises(DecodingCancelled):
            decoding.run(ignore)

    def test_an_error_while_showing_leaves_no_process(self, long_trace: Path) -> None:
        seen: list[psutil.Process] = []

        def interrupt(step: Progressed) -> None:
            seen.extend(decoders())
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Decoding(long_trace).run(interrupt)
        assert seen and not any(process.is_running() for process in seen)

    def test_the_process_dies_with_the_one_that_waits(self, long_trace: Path) -> None:
        code = (
            "import psutil, signal, sys\n"
            "from pathlib import Path\n"
            "from sysbench.core.inspection.decoding import Decoding\n"
            "def stop(step):\n"
            "    child, = psutil.Process().children()\n"
            "    child.suspend()\n"
            "    print(child.pid, flush=True)\n"
            "    signal.pause()\n"
            f"Decoding(Path({str(long_trace)!r})).run(stop)\n"
        )
        with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
            parent.send_signal(signal.SIGKILL)
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_decoding_needs_neither_torch_nor_a_screen() -> None:
    code = (
        "import sysbench.core.inspection.__main__, sysbench.core.inspection.decoding, sys;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    words = [sys.executable, "-P", "-c", code]
    loaded = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "pandas", "textual", "rich"} & set(loaded)


def test_waiting_needs_no_numpy() -> None:
    code = "import sysbench.core.inspection.decoding, sys; print('numpy' in sys.modules)"
    words = [sys.executable, "-P", "-c", code]
    assert subprocess.run(words, check=True, capture_output=True).stdout == b"False\n"
