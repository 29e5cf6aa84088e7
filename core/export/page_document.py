"""An HTML page in one file: escaped markup, inline style and script, no requests."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Collection, Iterable, Mapping
from importlib.resources import files

from sysbench.core.tables.cells import cells_as_text, heading_of, is_numeric, literal
from sysbench.core.tables.table import Table
from sysbench.core.tables.trust import mark_perturbed

HEADING = re.compile(r"<h2>(.*?)</h2>")
BREAK = re.compile(r"[:;,] ")


def text(value: object) -> str:
    """Escape untrusted text."""
    return html.escape(literal(str(value)))


def tag(name: str, *inside: str, **attributes: object) -> str:
    """Make an element around trusted HTML. Attributes are escaped, ``_`` becomes ``-``, and a
    trailing underscore is dropped: ``class_`` is ``class``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{''.join(inside)}</{name}>"


def with_code_tags(value: str) -> str:
    """Escape untrusted text; what stands between backticks becomes code."""
    parts = value.split("`")
    if len(parts) % 2 == 0:
        return text(value)
    return "".join(tag("code", text(part)) if n % 2 else text(part) for n, part in enumerate(parts))


def section(title: str, *inside: str, anchor: str) -> str:
    return tag("section", tag("h2", text(title)), *inside, id=anchor)


def table(content: Table, perturbed: Collection[str] = ()) -> str:
    """Make a table; ``perturbed`` are columns whose numbers are marked."""
    looks = ["number" if is_numeric(content, name) else "words" for name in content.columns]
    head = [
        tag("th", text(heading_of(content, name)), class_=look)
        for name, look in zip(content.columns, looks, strict=True)
    ]
    marks = [mark_perturbed if name in perturbed else str for name in content.columns]
    rows = [
        tag(
            "tr",
            *(
                tag("td", text(mark(cell)), class_=look)
                for cell, look, mark in zip(row, looks, marks, strict=True)
            ),
        )
        for row in cells_as_text(content)
    ]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))


def branch(
    name: str, figures: Iterable[str], share: float, *below: str, is_open: bool = False
) -> str:
    """Make a line of a tree with a bar for its share, and its children."""
    width = f"width:{min(max(share, 0.0), 1.0):.1%}"
    line = [
        tag("span", tag("i", style=width), class_="bar"),
        *(tag("span", text(figure), class_="figure") for figure in figures),
        tag("span", text(name), class_="name"),
    ]
    how = {"open": "open"} if is_open else {}
    return tag("details", tag("summary", *line), *below, class_="" if below else "leaf", **how)


def document(title: str, head: str, sections: Mapping[str, str], about: str = "") -> str:
    """Make a page with inline style and script and a policy that forbids all requests.

    Args:
        title: Window title, plain text.
        head: HTML before the sections.
        sections: HTML of each section by anchor; the contents list follows from it.
        about: Description of the page, plain text.
    """
    style, script = (_part(name) for name in ("page.css", "page.js"))
    links = [_link(anchor, inside) for anchor, inside in sections.items()]
    described = f'<meta name="description" content="{text(about)}">\n' if about else ""
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<link rel="icon" href="data:,">\n',
            described,
            f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n",
            tag("header", head, tag("nav", *links)),
            "\n",
            "\n".join(sections.values()),
            f"\n<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def _link(anchor: str, inside: str) -> str:
    """Link to a section by its heading up to the first break."""
    found = HEADING.search(inside)
    title = html.unescape(found[1]) if found else anchor.replace("-", " ")
    return tag("a", text(BREAK.split(title)[0]), href=f"#{anchor}")


def _policy(script: str) -> str:
    """Return a content security policy that allows only this script and no requests."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; script-src 'sha256-{digest}'"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
