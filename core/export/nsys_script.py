"""Write a script with the ``nsys profile`` command for a spec, every flag explained."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sysbench.core.export.exports import refuse_existing, write
from sysbench.core.machine.children import PROBE, python_child
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.cells import literal, literal_json


@dataclass(frozen=True, slots=True)
class Flag:
    text: str
    purpose: str

    @property
    def option(self) -> str:
        """The flag's name in ``--help``."""
        return self.text.partition("=")[0]


_ALWAYS = (
    Flag("--sample=none", "no CPU sampling: it slows the host threads that launch kernels"),
    Flag("--cpuctxsw=none", "no context switches: they need privileges and are not used here"),
    Flag("--export=sqlite", "a database beside the report, which newer and older tools can read"),
    Flag("--wait=primary", "end with the program, and not with the processes that it leaves"),
    Flag("--force-overwrite=true", "replace the report of an earlier call"),
)
_ON_CUDA = (
    Flag(
        "--trace=cuda,nvtx,osrt,cublas,cudnn",
        "kernels and copies, our phase and module ranges, waits of the host, library calls",
    ),
    Flag("--capture-range=cudaProfilerApi", "record the measured steps only, not the warm-up"),
    Flag("--capture-range-end=stop", "end the recording with them; the default kills the program"),
    Flag("--cuda-graph-trace=node", "kernels inside CUDA graphs one by one, not as one block"),
    Flag("--cuda-memory-usage=true", "device memory over time"),
)
_ON_CPU = (Flag("--trace=nvtx,osrt", "our phase and module ranges, and waits of the host"),)
_NO_RANGE_ON_CPU = "# The CPU has no profiler API to mark the measured steps: all is recorded."


def write_script(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
    """Write the script and the spec file that it reads."""
    header = run.header()
    spec = header.spec
    spec_path = out.with_suffix(".spec.json")
    refuse_existing([spec_path], force=force)
    write(spec_path, literal_json(msgspec.json.encode(spec)))
    write(out, script(run.id, spec, spec_path, header.python).encode())
    out.chmod(out.stat().st_mode | 0o111)
    return [out, spec_path]


def script(run_id: str, spec: RunSpec, spec_path: Path, python: str = "") -> str:
    """Return the text of the script.

    Args:
        python: Interpreter of the run's workers; empty for this program's.
    """
    flags, left_out, source = flags_for(spec, installed_options())
    flags = [*flags, Flag(f"--output={run_id}", "the report's name; .nsys-rep is added")]
    target = [
        *python_child("sysbench.core.worker", python=python),
        *("--spec", str(spec_path.resolve()), "--pass", "timing", "--capture"),
    ]
    one_line = shlex.join(["nsys", "profile", *(flag.text for flag in flags), *target])
    lines = [
        "#!/usr/bin/env bash",
        f"# Nsight Systems over the timing pass of {literal(run_id)}: same spec, fresh weights.",
        f"# Flags checked against {source}.",
        *([] if spec.on_cuda else [_NO_RANGE_ON_CPU]),
        "#",
        "# In one line:",
        f"#   {literal(one_line)}",
        "#",
        "# A step under nsys is not a timing: compare it with the run's bare step.",
        "set -eu",
        *([f"export PYTHONPATH={_quoted(str(PROBE))}"] if python else []),
        "flags=(",
    ]
    for flag in flags:
        lines += [f"  # {flag.purpose}", f"  {_quoted(flag.text)}"]
    lines += [f"  # left out, this nsys has no {flag.option}: {flag.purpose}" for flag in left_out]
    command = " ".join(map(_quoted, target))
    lines += [")", f'exec nsys profile "${{flags[@]}}" {command}', ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Quote a word for bash, with control characters as escapes of their bytes."""
    if text.isprintable():
        return shlex.quote(text)
    parts = (
        c if c.isprintable() and c not in "\\'" else "".join(f"\\x{b:02x}" for b in os.fsencode(c))
        for c in text
    )
    return f"$'{''.join(parts)}'"


def flags_for(spec: RunSpec, options: frozenset[str] | None) -> tuple[list[Flag], list[Flag], str]:
    """Return the flags to use, those missing in the installed nsys, and where its options come
    from."""
    wanted = [*(_ON_CUDA if spec.on_cuda else _ON_CPU), *_ALWAYS]
    if options is None:
        return wanted, [], "the options of nsys 2023.4 and later; no nsys here to ask"
    used = [flag for flag in wanted if flag.option in options]
    return used, [flag for flag in wanted if flag not in used], "`nsys profile --help` of this box"


def installed_options() -> frozenset[str] | None:
    """Return the long options of the installed nsys; None without one."""
    program = shutil.which("nsys")
    if program is None:
        return None
    try:
        text = subprocess.run(
            [program, "profile", "--help"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return frozenset(re.findall(r"--[a-z][a-z0-9-]+", text)) or None
