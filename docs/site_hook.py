"""What the site needs beyond docs/: pages of the root, and links that lead out of docs.

MkDocs calls these functions by their names; `mkdocs.yml` names this file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OF_THE_ROOT = {
    name: f"project/{name}" for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
}
"""Pages beside docs/, and where the site has them."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
WILDCARD = "*.md"


def on_config(config: Any) -> Any:
    """Put the pages of a folder in place of ``folder/*.md`` in the navigation."""
    config.nav = [_expanded(part) for part in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root."""
    for name, target in OF_THE_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where the site has their target; without one, their text alone stays."""
    path = page.file.src_uri
    home = next(
        (f"{name}" for name, target in OF_THE_ROOT.items() if target == path), f"docs/{path}"
    )

    def led(match: re.Match[str]) -> str:
        mark, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        if aim in OF_THE_ROOT:
            there = OF_THE_ROOT[aim]
        elif aim.startswith("docs/"):
            there = aim.removeprefix("docs/")
        else:
            return text
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(path) or '.')}{anchor})"

    return LINK.sub(led, markdown)


def _expanded(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {
        title: [page for inner in pages for page in _pages(inner)]
        if isinstance(pages, list)
        else pages
        for title, pages in part.items()
    }


def _pages(inner: Any) -> list[Any]:
    """Pages of the folder of ``folder/*.md`` but its README, or the entry itself."""
    if not isinstance(inner, str) or not inner.endswith(WILDCARD):
        return [inner]
    folder = ROOT / "docs" / inner.removesuffix(WILDCARD)
    found = sorted(path for path in folder.glob(WILDCARD) if path.name != "README.md")
    return [path.relative_to(ROOT / "docs").as_posix() for path in found]
