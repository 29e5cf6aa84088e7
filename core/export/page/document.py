"""A whole HTML document that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from .markup import tag, text


def document(title: str, head: str, sections: Mapping[str, str]) -> str:
    """One file: style and script inside, and a policy that forbids every request.

    Args:
        title: Of the window; plain text.
        head: HTML before the sections.
        sections: Anchor to HTML of a section, in order; the contents are made of them.
    """
    style, script = (_part(name) for name in ("look.css", "look.js"))
    links = [tag("a", text(anchor.replace("-", " ")), href=f"#{anchor}") for anchor in sections]
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<link rel="icon" href="data:,">\n',
            f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n",
            tag("header", head, tag("nav", *links)),
            "\n",
            "\n".join(sections.values()),
            f"\n<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def _policy(script: str) -> str:
    """Only this script runs, and nothing is fetched: a name in a table cannot do either."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; script-src 'sha256-{digest}'"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
