"""Names by which programs mark their steps, as their sources form them."""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.trace.markers import Marker, find_steps, read_marker
from sysbench.core.trace.trace_reader import read_trace


@pytest.mark.parametrize(
    ("name", "family", "marker"),
    [
        ("ProfilerStep#551", "torch.profiler", Marker(number=551)),
        ("step[DECODE bs=32]", "SGLang", Marker(kind="decode", tokens=32, requests=32)),
        (
            "step[EXTEND bs=15 toks=15360]",
            "SGLang",
            Marker(kind="prefill", tokens=15360, requests=15),
        ),
        (
            "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]",
            "SGLang",
            Marker(kind="prefill", tokens=12, requests=2),
        ),
        ("step[MIXED bs=3 toks=9]", "SGLang", Marker(kind="mixed", tokens=9, requests=3)),
        ("step[TARGET_VERIFY bs=4]", "SGLang", Marker(kind="target_verify", requests=4)),
        ("decode[bs=8]", "ATOM", Marker(kind="decode", tokens=8, requests=8)),
        ("prefill[bs=2 tok=16384]", "ATOM", Marker(kind="prefill", tokens=16384, requests=2)),
        (
            "execute_context_2(1024)_generation_3(3)",
            "vLLM",
            Marker(kind="mixed", tokens=1027, requests=5),
        ),
        (
            "execute_context_0(0)_generation_7(7)",
            "vLLM",
            Marker(kind="decode", tokens=7, requests=7),
        ),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37"
            "(sq37sk34489sqsq37sqsk34489)",
            "vLLM",
            Marker(kind="mixed", tokens=8192, requests=46),
        ),
        ("train_step 12", "ranges", Marker(number=12)),
        ("Iteration#4", "ranges", Marker(number=4)),
    ],
)
def test_a_marker_says_what_its_program_put_in(name: str, family: str, marker: Marker) -> None:
    assert read_marker(name) == (family, marker)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "ProfilerStep#",
            "ProfilerStep#12345678901",
            "ProfilerStep*",
            "Optimizer.step#AdamW.step",
        ),
        *(
            "step",
            "aten::step1",
            "step[DECODE]",
            "execute_context_1()_generation_2()",
            "steps 1 to 3",
        ),
    ],
)
def test_other_names_mark_no_step(name: str) -> None:
    assert read_marker(name) is None


def test_of_two_families_the_one_with_more_steps_counts_and_of_as_many_the_finer(
    writer: Any,
) -> None:
    writer.add("user_annotation", "ProfilerStep#3", 0, 100)
    writer.add("user_annotation", "execute_context_0(0)_generation_7(7)", 10, 80)
    writer.add("user_annotation", "step[DECODE bs=7]", 20, 60)
    steps = find_steps(read_trace(writer.write()))
    assert steps is not None and (steps.family, steps.numbers) == ("SGLang", [1])
    writer.add("user_annotation", "ProfilerStep#4", 100, 100)
    steps = find_steps(read_trace(writer.write()))
    assert steps is not None and (steps.family, steps.numbers) == ("torch.profiler", [3, 4])


def test_a_marker_inside_another_is_no_step_of_its_own(writer: Any) -> None:
    for at, name in ((0, "step 1"), (40, "step 2"), (100, "step 3"), (160, "step 3")):
        writer.add("user_annotation", name, at, 50)
    steps = find_steps(read_trace(writer.write()))
    assert steps is not None
    assert (steps.names, steps.left_out) == (["step 1", "step 3", "step 3"], 1)
    assert steps.numbers == [1, 2, 3]  # 3 would be two steps
