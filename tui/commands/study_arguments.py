"""The arguments of `study`: one command with two words that are no studies, show and list."""

from __future__ import annotations

import argparse

FORMATS = ("md", "csv", "json", "html")


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Everything that `study` takes."""
    parser.add_argument(
        "name", metavar="NAME|FILE", help="a study by name, a TOML file; or show NAME, or list"
    )
    parser.add_argument("target", nargs="?", metavar="NAME", help="the study to show")
    parser.add_argument("--variant", default="", help="another size of it, such as small")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace an axis (several values with commas) or a fixed key; repeatable",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="only these points of an axis (with commas); repeatable",
    )
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds over the whole grid")
    parser.add_argument("--max-minutes", type=float, metavar="M", help="start no cell after that")
    parser.add_argument("--retry", action="store_true", help="run failed cells once more")
    parser.add_argument("--dry-run", action="store_true", help="show the cells, run nothing")
    parser.add_argument("--format", choices=FORMATS, default="", help="of show")
    parser.add_argument("-o", "--output", metavar="PATH", help="file that show writes")
    parser.add_argument("--force", action="store_true", help="replace what is there already")
