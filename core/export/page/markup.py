"""Pieces of HTML: text is always literal, whatever it holds."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ...tables.cells import cells_as_text, heading, is_numeric, literal
from ...tables.table import Table


def text(value: object) -> str:
    """Foreign text: control characters shown, markup escaped."""
    return html.escape(literal(str(value)))


def tag(name: str, *inside: str, **attributes: object) -> str:
    """An element around HTML that is ready; attributes are escaped, ``_`` reads ``-``.

    A trailing underscore is dropped: ``class_`` is ``class``.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{''.join(inside)}</{name}>"


def section(title: str, *inside: str, anchor: str) -> str:
    """A titled part of the page that the contents link to."""
    return tag("section", tag("h2", text(title)), *inside, id=anchor)


def table(content: Table, *, without: Sequence[str] = ()) -> str:
    """A table as people read it."""
    columns = [name for name in content.columns if name not in without]
    places = [content.columns.index(name) for name in columns]
    looks = ["number" if is_numeric(content, name) else "words" for name in columns]
    head = [
        tag("th", text(heading(name)), class_=look)
        for name, look in zip(columns, looks, strict=True)
    ]
    rows = [
        tag(
            "tr",
            *(
                tag("td", text(row[at]), class_=look)
                for at, look in zip(places, looks, strict=True)
            ),
        )
        for row in cells_as_text(content)
    ]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))


def branch(
    name: str, figures: Iterable[str], share: float, *below: str, is_open: bool = False
) -> str:
    """A line of a tree with a bar for its share, and what opens under it."""
    width = f"width:{min(max(share, 0.0), 1.0):.1%}"
    line = [
        tag("span", tag("i", style=width), class_="bar"),
        *(tag("span", text(figure), class_="figure") for figure in figures),
        tag("span", text(name), class_="name"),
    ]
    how = {"open": "open"} if is_open else {}
    return tag("details", tag("summary", *line), *below, class_="" if below else "leaf", **how)
