"""The command that reproduces a spec, as text; a run whose supervisor is on its way."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from sysbench.core.runs.run_directory import BEGIN_SECONDS, create_run, load_record
from sysbench.core.spec.command_line import as_typed, command_line
from sysbench.core.spec.fields import field_named
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.commands.registry import parse_arguments
from sysbench.tui.commands.spec_arguments import asked_spec


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(),
        RunSpec(model="cs336-2025/large", precision="bf16", compile_fullgraph=True, clip=0.5),
        RunSpec(vocab=100, d_model=32, d_ff=64, layers=1, heads=2),
        RunSpec(device="cpu", memory_limit=24 * 2**30, warmup=0, until=0.01),
        RunSpec(memory_limit=2**20 + 1),
    ],
)
def test_the_command_gives_the_same_spec_back(spec: RunSpec) -> None:
    program, *words = shlex.split(command_line(spec))
    assert program == "sysbench-tui"
    assert asked_spec(parse_arguments(words)).identity == spec.identity


def test_bytes_are_written_in_binary_units() -> None:
    assert "memory_limit=24GiB" in command_line(RunSpec(memory_limit=24 * 2**30))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_limit", 24 * 2**30, "24GiB"),
        ("memory_limit", 3 * 2**20, "3MiB"),
        ("memory_limit", 2**20 + 2**10, "1025KiB"),
        ("memory_limit", 2**20 + 1, "1048577"),
        ("memory_limit", 0, "0"),
        ("compile_fullgraph", True, "true"),
        ("until", 0.0123, "0.0123"),
        ("batch", 2**20, "1048576"),
        ("warmup", "auto", "auto"),
    ],
)
def test_a_value_as_one_types_it_parses_back_to_it(name: str, value: object, text: str) -> None:
    assert as_typed(name, value) == text
    assert field_named(name).parse(text) == value


def test_passes_are_named_unless_all() -> None:
    assert command_line(RunSpec(), ["timing"]).endswith("--passes timing")


def test_a_run_that_begins_is_not_called_killed(sysbench_home: Path) -> None:
    run = create_run(RunSpec(device="cpu"), ["timing"])
    assert load_record(run).status == "running"
    assert not run.record_path.exists(), "its supervisor writes the first"
    header = run.header()
    for seconds, status in ((BEGIN_SECONDS, "killed"), (-3600, "killed")):
        created_ns = header.created_ns - int(seconds * 1e9)
        run.header_path.write_bytes(
            msgspec.json.encode(msgspec.structs.replace(header, created_ns=created_ns))
        )
        assert load_record(run).status == status
        run.record_path.unlink()
