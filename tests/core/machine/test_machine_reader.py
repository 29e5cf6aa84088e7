"""What a look at this machine reads: GPUs of the stub, processes on them, the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.machine.machine_reader import ProcessReader, describe_process, disk_use
from sysbench.core.machine.sample import HIDDEN, MAX_COMMAND_CHARS, command_text
from tests.core.conftest import RunPython

LOOK_TWICE = """
import sys, tempfile, time, msgspec
from pathlib import Path
from sysbench.core.machine.machine_reader import MachineReader
with MachineReader({"temporary": Path(tempfile.gettempdir())}) as reader:
    first = reader.take()
    time.sleep(0.11)
    second = reader.take()
sys.stdout.buffer.write(msgspec.json.encode([first, second]))
"""
GIB = 2**30
ABSENT = 2**22 + 1
"""Above the largest process id of Linux."""


@pytest.fixture(scope="module")
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, "--hf-token", "hunter2"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("count", [1, 2, 8])
def test_every_gpu_has_its_values(on_stub: RunPython, count: int) -> None:
    _, state = on_stub(LOOK_TWICE, NVML_STUB_GPUS=str(count), NVML_STUB_REASONS="0x24")
    assert [gpu["sample"]["index"] for gpu in state["gpus"]] == [*range(count)]
    last = state["gpus"][-1]
    assert last["sample"]["memory_used_bytes"] == (9 + count) * GIB
    assert last["sample"]["clock_reasons"] == ["power cap", "software thermal"]
    assert (last["performance_state"], last["memory_busy"], last["ecc_errors"]) == ("P0", 0.2, 0)
    assert last["sample"]["sm_active"] == 0.925
    assert last["bus_id"] == f"00000000:{count - 1:02X}:00.0"
    assert last["missing"] == {"fan_share": "NVML: Not Supported"}
    assert (state["driver"], state["cuda"], state["no_gpus"]) == ("580.95.05", "13.0", "")


def test_what_nvml_refuses_is_null_with_its_reason(on_stub: RunPython) -> None:
    refused = "nvmlDeviceGetUtilizationRates:4,nvmlDeviceGetComputeRunningProcesses_v3:4"
    _, state = on_stub(LOOK_TWICE, NVML_STUB_REFUSE=refused)
    gpu = state["gpus"][0]
    assert gpu["sample"]["utilization"] is None and gpu["memory_busy"] is None
    why = "NVML: Insufficient Permissions"
    assert {gpu["missing"][name] for name in ("utilization", "memory_busy", "processes")} == {why}
    assert state["gpu_processes"] == []


def test_a_gpu_that_is_lost_has_no_values(on_stub: RunPython) -> None:
    _, state = on_stub(LOOK_TWICE, NVML_STUB_GPUS="2", NVML_STUB_LOST="1:12")
    here, lost = state["gpus"]
    assert lost["sample"]["lost"] and lost["missing"] == {"device": "it stopped answering (lost)"}
    assert here["sample"]["utilization"] == 0.4


def test_a_process_on_a_gpu_has_owner_command_memory_and_age(
    on_stub: RunPython, sleeper: subprocess.Popen[bytes]
) -> None:
    pid = sleeper.pid
    _, state = on_stub(
        LOOK_TWICE,
        NVML_STUB_GPUS="2",
        NVML_STUB_PROCESSES=f"{pid}:{3 * GIB},1:-",
        NVML_STUB_GRAPHICS=f"{pid}:{3 * GIB}",
        NVML_STUB_BUSY=f"{pid}:35",
    )
    row, first = state["gpu_processes"]
    assert (row["gpu"], row["pid"], row["kind"]) == (0, pid, "both")
    assert (row["gpu_memory_bytes"], row["sm_share"]) == (3 * GIB, 0.35)
    assert row["user"] == psutil.Process(pid).username()
    assert row["memory_bytes"] > 0 and row["age_seconds"] > 0 and row["cores"] is not None
    assert row["command"].endswith(f"--hf-token {HIDDEN}") and "hunter2" not in str(state)
    assert (first["gpu_memory_bytes"], first["sm_share"]) == (None, None)
    assert pid not in [process["pid"] for process in state["processes"]]


def test_a_process_that_is_not_in_this_container_is_shown_as_such(on_stub: RunPython) -> None:
    states = on_stub(LOOK_TWICE, NVML_STUB_PROCESSES=f"{ABSENT}:{GIB}")
    first, second = (state["gpu_processes"][0] for state in states)
    assert first["missing"] == "just ended, of another container, or hidden by the system"
    assert second["missing"] == "of another container, or hidden by the system"
    assert (second["gpu_memory_bytes"], second["user"], second["command"]) == (GIB, None, None)


def test_mig_instances_are_listed_and_say_what_is_refused(on_stub: RunPython) -> None:
    _, state = on_stub(LOOK_TWICE, NVML_STUB_GPUS="2", NVML_STUB_MIG="0")
    gpu, other = state["gpus"]
    why = "NVML: Not Supported (the GPU is in MIG mode)"
    assert gpu["missing"]["utilization"] == why
    known, refused = gpu["mig_instances"]
    assert (known["gpu_instance"], known["memory_used_bytes"]) == (1, 18 * GIB)
    assert (refused["gpu_instance"], refused["memory_used_bytes"]) == (2, None)
    assert other["mig_instances"] == []


def test_without_a_gpu_the_host_is_read(without_nvml: RunPython) -> None:
    first, second = without_nvml(LOOK_TWICE)
    assert second["gpus"] == [] and "no NVIDIA driver" in second["no_gpus"]
    host = second["host"]
    assert first["host"]["cpu"] is None and 0 <= host["cpu"] <= 1
    assert len(host["core_shares"]) == host["cores"] == psutil.cpu_count()
    assert 0 < host["memory_used_bytes"] <= host["memory_total_bytes"]
    assert host["disks"]["temporary"]["free_bytes"] > 0
    assert second["processes"] and second["process_count"] >= len(second["processes"])


def test_idle_threads_of_the_kernel_are_left_out() -> None:
    _, busiest, _ = ProcessReader().read([])
    assert busiest and all(process.memory_bytes != 0 or process.cores for process in busiest)


def test_the_busiest_process_comes_first() -> None:
    code = "while True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as busy:
        try:
            reader = ProcessReader()
            reader.read([])
            begin = psutil.Process(busy.pid).cpu_times().user
            while psutil.Process(busy.pid).cpu_times().user < begin + 0.1:
                pass
            _, busiest, _ = reader.read([])
        finally:
            busy.kill()
    cores = [process.cores or 0 for process in busiest]
    place = [process.pid for process in busiest].index(busy.pid)
    assert cores[place] > 0 and round(cores[0], 2) == round(max(cores), 2)


def test_a_process_that_ends_between_listing_and_reading_says_so() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        listed = psutil.Process(ended.pid)
    state = describe_process(listed, 0.5)
    assert (state.pid, state.cores, state.missing) == (ended.pid, 0.5, "it ended")
    assert state.command is None


def test_a_process_whose_arguments_are_denied_keeps_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deny(self: psutil.Process) -> Any:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "cmdline", deny)
    state = describe_process(psutil.Process(), None)
    assert state.missing == "no permission to read its arguments"
    assert state.command is None and state.memory_bytes and state.user


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_a_process_of_another_user_has_that_user() -> None:
    with subprocess.Popen(["sleep", "60"], user=65534) as other:
        try:
            state = describe_process(psutil.Process(other.pid), None)
        finally:
            other.kill()
    assert state.user in ("nobody", "65534")
    assert state.command == "sleep 60"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["/usr/bin/python3", "train.py", "--lr", "1"], "python3 train.py --lr 1"),
        (["a", "--token", "x y", "b"], f"a --token {HIDDEN} b"),
        (["a", "--token", "--verbose"], "a --token --verbose"),
        (["a", "--hf_token=x"], f"a --hf_token={HIDDEN}"),
        (["env", "WANDB_API_KEY=x", "a"], f"env WANDB_API_KEY={HIDDEN} a"),
        (["sh", "-c", "HF_TOKEN=x run; y"], f"sh -c HF_TOKEN={HIDDEN} run; y"),
        (["curl", "-H", "Authorization: Bearer x"], f"curl -H Authorization: {HIDDEN} {HIDDEN}"),
        (["sh", "-c", "TOKEN='x y' run"], f"sh -c TOKEN={HIDDEN} run"),
        (["a", '{"api_key": "x", "lr": 1}'], f'a {{"api_key": {HIDDEN}, "lr": 1}}'),
        (["git", "clone", "https://me:x@host/a"], f"git clone https://{HIDDEN}@host/a"),
        (["a", "hf_abcdefghijkl"], f"a {HIDDEN}"),
        (["a", "--tokenizer", "gpt2", "--max-tokens", "5"], "a --tokenizer gpt2 --max-tokens 5"),
        (["a", "two\nlines  here"], "a two lines here"),
        ([], ""),
    ],
)
def test_secrets_in_arguments_are_hidden(arguments: list[str], shown: str) -> None:
    assert command_text(arguments) == shown


@given(
    st.sampled_from(["--token", "--api-key", "--hf-token", "-password", "--db.password"]),
    st.from_regex(r"[A-Z0-9]{12}", fullmatch=True),
    st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=90),
    st.booleans(),
)
def test_no_value_of_a_secret_option_is_shown(
    option: str, value: str, others: list[str], is_joined: bool
) -> None:
    secret = [f"{option}={value}"] if is_joined else [option, value]
    text = command_text([*others, *secret, *others])
    assert value not in text
    assert len(text) <= MAX_COMMAND_CHARS


def test_a_folder_that_is_not_made_yet_has_the_disk_of_its_parent(tmp_path: Path) -> None:
    assert disk_use(tmp_path / "a" / "b").total_bytes == disk_use(tmp_path).total_bytes
