"""The code that torch.compile generated, as the trace pass kept it."""

from __future__ import annotations

from .analysis.kernels.provenance import kernel_source
from .errors import NotFoundError
from .runs.directory import RunDirectory

LARGEST_BYTES = 32 * 2**20


def generated_code(run: RunDirectory, file: str, name: str) -> str:
    """The definition of one kernel; the whole file where the kernel is not defined in it.

    Args:
        file: Path of the code relative to the trace pass's folder, as in the record.
        name: The kernel's.

    Raises:
        NotFoundError: There is no such file in the run, or it is far too large.
    """
    folder = run.pass_folder("trace").resolve()
    path = (folder / file).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise NotFoundError(f"run {run.id} has no generated code {file}")
    if path.stat().st_size > LARGEST_BYTES:
        raise NotFoundError(f"{path} is too large to show")
    code = path.read_text(encoding="utf-8", errors="replace")
    return kernel_source(code, name) or code
