"""Findings of a foreign file: Verdict, Why and Next of each, and what its tables leave out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from sysbench.core.export.text_formats import findings_as_markdown
from sysbench.core.record.record import Finding
from sysbench.core.tables.cells import literal
from sysbench.core.tables.trust import trust_lines
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.screens.summary_tab import SEVERITY
from sysbench.tui.widgets.dialog import Facts, Wrapped, hanging


class FoundInFile(Wrapped):
    """Every finding in full, the most severe first as the rules order them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(id="findings", markup=False)
        self._findings = findings

    def lines(self, width: int) -> Iterable[Content]:
        return (line for finding in self._findings for line in _lines(finding, width))


class FindingsTab(ResultTab):
    """What the rules say of a file, then what its numbers include."""

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield FoundInFile(self.record.findings)
            if trust := [(name, literal(text)) for name, text in trust_lines(self.record)]:
                yield Facts("What the numbers include", trust)

    def copyable(self) -> tuple[str, str]:
        return "the findings as Markdown", "\n".join(findings_as_markdown(self.record.findings))


def _lines(finding: Finding, width: int) -> Iterator[Content]:
    glyph, colour = SEVERITY[finding.severity]
    verdict = f"{glyph} {literal(finding.verdict)}"
    rows = (("", verdict, "bold"), ("Why", literal(finding.why), ""))
    for name, text, style in (*rows, ("Next", literal(finding.next), "")):
        prefix = Content.styled(f"{name:<6}" if name else "", "$foreground 60%")
        for line in hanging(prefix, text, width - 2, style):
            yield Content.styled("▌ ", colour) + line
    yield Content("")
