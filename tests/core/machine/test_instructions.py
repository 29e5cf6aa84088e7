"""What oneDNN takes of a CPU: by its flags and variables, and as oneDNN itself says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sysbench.core.machine.devices import (
    LADDER,
    LIMITS,
    NAMES,
    cpu_flags,
    has_own_products,
    onednn_instructions,
)
from sysbench.core.record.environment import instruction_set
from sysbench.core.runs.run_directory import RunDirectory

AVX512 = {"sse4_1", "avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq"}
ZEN_5 = AVX512 | {"avx_vnni", "avx512_vnni", "avx512_bf16"}
SAPPHIRE_RAPIDS = ZEN_5 | {"avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        (set(), None, None),
        ({"asimd", "bf16"}, None, None),
        ({"sse4_1", "avx", "avx2"}, None, "AVX2"),
        (AVX512, None, "AVX512_CORE"),
        (ZEN_5, None, "AVX512_CORE_BF16"),
        (SAPPHIRE_RAPIDS, None, "AVX512_CORE_AMX"),
        (SAPPHIRE_RAPIDS | {"amx_fp16"}, None, "AVX512_CORE_AMX_FP16"),
        (SAPPHIRE_RAPIDS, "AVX512_CORE", "AVX512_CORE"),
        (SAPPHIRE_RAPIDS, "avx2", "AVX2"),
        (SAPPHIRE_RAPIDS, "AVX10_1_512", "AVX512_CORE_FP16"),
        (SAPPHIRE_RAPIDS, "DEFAULT", "AVX512_CORE_AMX"),
        (SAPPHIRE_RAPIDS, "nonsense", "AVX512_CORE_AMX"),
        (ZEN_5, "AVX512_CORE_AMX", "AVX512_CORE_BF16"),
    ],
)
def test_it_is_the_most_of_the_flags_that_is_allowed(
    flags: set[str], limit: str | None, expected: str | None
) -> None:
    environ = {} if limit is None else {LIMITS[0]: limit}
    assert onednn_instructions(flags, environ) == expected


def test_the_older_variable_counts_where_the_newer_is_not_set() -> None:
    newer, older = LIMITS
    assert onednn_instructions(SAPPHIRE_RAPIDS, {older: "AVX2"}) == "AVX2"
    assert onednn_instructions(SAPPHIRE_RAPIDS, {older: "AVX2", newer: "AVX"}) == "AVX"


@pytest.mark.parametrize(
    ("instructions", "bf16", "fp16"),
    [
        (None, False, False),
        ("AVX2", False, False),
        ("AVX512_CORE", True, False),
        ("AVX512_CORE_BF16", True, False),
        ("AVX512_CORE_FP16", True, True),
        ("AVX512_CORE_AMX", True, True),
    ],
)
def test_from_where_on_onednn_computes_products(
    instructions: str | None, bf16: bool, fp16: bool
) -> None:
    assert has_own_products(instructions, "bfloat16") == bf16
    assert has_own_products(instructions, "float16") == fp16
    assert not has_own_products(instructions, "float32")


ASK = """
import ctypes, os, sys, torch
from sysbench.core.machine.devices import cpu_flags, has_own_products, onednn_instructions

def ask():
    instructions = onednn_instructions(cpu_flags(), os.environ)
    onednn = torch.ops.mkldnn
    assert has_own_products(instructions, "bfloat16") == onednn._is_mkldnn_bf16_supported()
    assert has_own_products(instructions, "float16") == onednn._is_mkldnn_fp16_supported()
    torch.ones(1, 1).to_mkldnn().to_dense()
    ctypes.CDLL(None).fflush(None)

variable, *limits = sys.argv[1:]
for limit in limits:
    print("limit", limit, flush=True)
    # oneDNN reads its variables when it is first used, so each copy may have its own.
    if not (copy := os.fork()):
        os.environ[variable] = limit
        ask()
        os._exit(0)
    assert os.waitpid(copy, 0)[1] == 0
"""
SAYS = {
    "AVX2": "AVX2",
    "AVX512_CORE": "AVX-512",
    "AVX512_CORE_BF16": "bfloat16",
    "AVX512_CORE_AMX": "AMX",
}
"""A word of what oneDNN says of itself, which none of the lesser sets has."""


@pytest.fixture(scope="module")
def onednn_says() -> dict[str, str]:
    """What oneDNN prints under each limit that this CPU has."""
    limits = [name for name in SAYS if dict(LADDER)[name] <= cpu_flags()]
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK, LIMITS[0], *limits],
        env=os.environ | {"ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = [part.split("\n", 1) for part in done.stdout.split("limit ")[1:]]
    return {limit: said for limit, said in parts}


@pytest.mark.parametrize("limit", SAYS)
def test_onednn_says_the_same(limit: str, onednn_says: dict[str, str]) -> None:
    if limit not in onednn_says:
        pytest.skip(f"this CPU has no {limit}")
    (said,) = (line for line in onednn_says[limit].splitlines() if ",isa:" in line)
    for name, word in SAYS.items():
        if NAMES.index(name) >= NAMES.index(limit):
            assert (word in said) == (name == limit), said


def test_a_run_on_the_cpu_says_which_it_was(tiny_run: RunDirectory) -> None:
    environment = tiny_run.record().environment
    assert environment["torch"]["cpu_capability"]
    expected = onednn_instructions(cpu_flags(), os.environ)
    assert environment["torch"].get("onednn_instructions") == expected
    words = [environment["torch"]["cpu_capability"], *([f"oneDNN {expected}"] if expected else [])]
    assert instruction_set(environment) == ", ".join(words)
