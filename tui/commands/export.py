"""`export`: export a run's artifacts and tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from sysbench.core.export.exports import EXPORTS, FILE_EXPORTS, write_export
from sysbench.core.runs.run_directory import RunDirectory, find_run
from sysbench.tui.commands.arguments import (
    add_file_choice,
    add_flag,
    add_run_argument,
    complete_with,
    examples,
    imported_file,
    output_path,
    refuse_file_choice,
)
from sysbench.tui.commands.output import print_answer


def declare_export(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write one export of a run:\n" + "\n".join(
        f"  {kind:<11} {export.purpose}" for kind, export in EXPORTS.items()
    )
    parser.description += (
        "\n\nInstead of a run you can name a file that `inspect` reads, to export its findings\n"
        f"and tables as {', '.join(FILE_EXPORTS)}."
    )
    parser.epilog = examples(
        ("sysbench-tui export last perfetto", ""),
        ("sysbench-tui export last csv -o tables/", ""),
        ("sysbench-tui export last nsys -o profile.sh && bash profile.sh", ""),
        ("sysbench-tui export last bundle", "one file to send"),
        ("sysbench-tui export trace.json.gz html --steps 2-5", "an imported file"),
    )
    add_run_argument(parser)
    parser.add_argument("kind", metavar="KIND", choices=tuple(EXPORTS), help="one of the above")
    output = parser.add_argument(
        "-o",
        "--output",
        type=output_path,
        metavar="PATH",
        help="file or folder (default: the current folder)",
    )
    complete_with(output, "file")
    add_flag(parser, "--force", "overwrite existing files")
    add_file_choice(parser)


def main(arguments: argparse.Namespace) -> int:
    out = Path(arguments.output) if arguments.output else None
    if file := imported_file(arguments.run):
        from sysbench.core.inspection.decoding import bundled_run  # lazy: --help stays fast

        if run := bundled_run(file):
            return _export_run(run, arguments, out)
        return _export_file(file, arguments, out)
    refuse_file_choice(arguments)
    return _export_run(find_run(arguments.run), arguments, out)


def _export_run(run: RunDirectory, arguments: argparse.Namespace, out: Path | None) -> int:
    paths = write_export(run, arguments.kind, out, force=arguments.force)
    return _print_paths(arguments, "run", run.id, paths)


def _export_file(file: Path, arguments: argparse.Namespace, out: Path | None) -> int:
    from sysbench.core.export.report_document import write_inspection  # lazy: --help stays fast
    from sysbench.core.inspection.decoding import Decoding  # lazy: --help stays fast
    from sysbench.tui.commands.progress import decoding_progress  # lazy: --help stays fast

    capture = Path(arguments.capture) if arguments.capture else None
    decoding = Decoding(file, 0, arguments.device, arguments.steps, capture)
    with decoding_progress() as progress:
        inspection = decoding.run(progress.show)
    paths = write_inspection(decoding.entry, inspection, arguments.kind, out, force=arguments.force)
    return _print_paths(arguments, "file", inspection.file, paths)


def _print_paths(arguments: argparse.Namespace, key: str, name: str, paths: list[Path]) -> int:
    """Print the files that were written; of a bundle also what was redacted and left out."""
    document: dict[str, object] = {
        **{key: name, "kind": arguments.kind},
        "paths": [*map(str, paths)],
    }
    lines: list[object] = [*paths]
    if arguments.kind == "bundle":
        # lazy: --help stays fast
        from sysbench.core.inspection.bundle_reading import INSPECTION, RECORD, read_manifest

        manifest = read_manifest(paths[0])
        document |= {"redacted": manifest.redacted, "left_out": manifest.left_out}
        counts = ", ".join(f"{kind} {count}" for kind, count in manifest.redacted.items())
        lines.append(f"replaced texts: {counts or 'none'}")
        lines += [f"left out: {name} ({why})" for name, why in manifest.left_out.items()]
        text = next(name for name in manifest.parts if name in (RECORD, INSPECTION))
        lines.append(f"read it before you send it: `unzip -p FILE {text}`")
    print_answer(document, *lines, json=arguments.json)
    return 0
