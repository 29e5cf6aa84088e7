"""The kinds of export and what each is for. Apart from the exports, so that help is quick."""

from __future__ import annotations

EXPORTS = {
    "perfetto": "the chrome trace, for ui.perfetto.dev; to a name in .json unpacked",
    "memory-viz": "the CUDA allocator's snapshot, for pytorch.org/memory_viz",
    "nsys": "a script with the nsys profile command for this spec, its flags explained",
    "html": "the whole report as one page, for any browser, without network",
    "csv": "all tables: a folder with a file each; to a name in .csv one tidy file",
    "md": "the whole report in Markdown",
    "json": "the record: every number, with its unit in its key",
}
