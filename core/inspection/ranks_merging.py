"""One Perfetto file of all ranks' traces, on one clock; the parent's side."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from sysbench.core.errors import ForeignFileError
from sysbench.core.inspection.decoding import default_limit_bytes, follow
from sysbench.core.inspection.messages import Finished, Progressed, Refused
from sysbench.core.inspection.ranks_folder import FolderError, as_text
from sysbench.core.machine.children import python_child
from sysbench.core.ranks.rank_rows import Ranks


def merge_traces(
    folder: Path,
    ranks: Ranks,
    output: Path,
    show: Callable[[Progressed], None],
    limit_bytes: int = 0,
) -> None:
    """Write the traces of the ranks as one, each shifted by what its clock is ahead.

    A child with a memory limit reads them, an event at a time. A rank whose clock is not known
    keeps its own.

    Args:
        folder: Holds the traces.
        ranks: Of the folder.
        output: Where to; packed where its name ends in .gz.
        show: Called with the progress.
        limit_bytes: Memory that the child may take; 0 as in `Decoding`.

    Raises:
        FolderError: The folder has no traces, or the output lies in it.
        ForeignFileError: A trace cannot be read any more, or the output not be written.
    """
    if ranks.kind != "chrome-trace":
        raise FolderError(f"{folder} has no traces to merge")
    if output.absolute().parent.resolve() == folder.resolve():
        raise FolderError(
            f"{output} lies in the folder itself, where it would be taken for a rank: write it "
            "elsewhere"
        )
    paths = {as_text(path.name): path for path in folder.iterdir()}
    files = [
        text
        for row in ranks.rows
        for text in (str(paths[row.file]), str(row.rank), str(row.clock_ahead_ns or 0))
    ]
    limit = str(limit_bytes or default_limit_bytes())
    with subprocess.Popen(
        python_child(
            "sysbench.core.inspection.merging_process", str(output.absolute()), limit, *files
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            end = follow(process, show)
            code = process.wait()
        finally:
            process.kill()
    match end:
        case Refused(message=message):
            raise ForeignFileError(message)
        case None:
            raise ForeignFileError(f"{output}: its writing ended with exit code {code}")
        case Finished():
            return
