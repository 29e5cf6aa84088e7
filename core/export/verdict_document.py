"""A verdict in Markdown, as a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sysbench.core.compare.verdict import Verdict
from sysbench.core.compare.verdict_text import describe_verdict
from sysbench.core.export.text_formats import escaped, table_as_markdown
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Table

_MARKS = {
    "faster": "🟢",
    "slower": "🔴",
    "same": "⚪",
    "not decidable": "🟡",
    "not the same computation": "🟠",
}


def verdict_as_markdown(
    verdict: Verdict,
    tables: Sequence[Table],
    *,
    facts: Iterable[str] = (),
    commands: Iterable[str] = (),
    folded: Sequence[Table] = (),
) -> str:
    """The verdict's line, its evidence, then tables.

    Args:
        verdict: B against A.
        tables: In sight, such as that of both sides.
        facts: Lines below the verdict, such as the result of a gate.
        commands: Shell commands, each on a line of its own.
        folded: Tables that a reader has to open, such as the conditions.
    """
    text = describe_verdict(verdict)
    lines = [f"### {_MARKS[verdict.verdict]} Step time: {escaped(text.headline)}", ""]
    lines += [f"- {_with_code(line)}" for line in (*text.reasons, *facts) if line]
    for table in tables:
        lines += ["", f"**{escaped(table.title)}**", "", table_as_markdown(table)]
    for table in folded:
        lines += ["", f"<details><summary>{escaped(table.title)}</summary>", ""]
        lines += [table_as_markdown(table), "", "</details>"]
    shell = [literal(command) for command in commands if command]
    if shell:
        lines += ["", "```sh", *shell, "```"]
    return "\n".join(lines) + "\n"


def _with_code(text: str) -> str:
    """Text with its commands between backticks kept, everything else escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escaped(text)
    return "".join(f"`{literal(part)}`" if n % 2 else escaped(part) for n, part in enumerate(parts))
