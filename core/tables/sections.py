"""Registry of report sections. Import-light, because the command line needs only names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a report.

    Attributes:
        block: Record field of the section; empty if every run has it.
        of_files: True if imported files may have it.
    """

    block: str = ""
    of_files: bool = False


SECTIONS = {
    "timing": Section("timing"),
    "rounds": Section("timing"),
    "job": Section("job"),
    "kernels": Section("kernels", of_files=True),
    "steps": Section("kernels", of_files=True),
    "collectives": Section("kernels", of_files=True),
    "copies": Section("kernels", of_files=True),
    "annotations": Section("kernels", of_files=True),
    "python": Section("kernels", of_files=True),
    "api": Section("kernels", of_files=True),
    "tree": Section("kernels", of_files=True),
    "questions": Section("kernels"),
    "roofline": Section("kernels", of_files=True),
    "memory": Section("memory", of_files=True),
    "oom": Section(),
    "nsys": Section("nsys", of_files=True),
    "telemetry": Section("telemetry"),
    "compile": Section("compile"),
    "distributed": Section("distributed"),
    "numerics": Section("numerics"),
    "log": Section(),
    "findings": Section(),
    "environment": Section(),
}
"""In the order of ``--section``."""

INSPECTED = tuple(name for name, section in SECTIONS.items() if section.of_files)
"""Sections that an imported file may have."""
