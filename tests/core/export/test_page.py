"""The report as one HTML page: complete, literal, and silent on the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from sysbench.core.export.exports import write_export
from sysbench.core.export.page_run_page import run_page
from sysbench.core.export.report_document import run_as_page
from sysbench.core.formatting import format_bytes, milliseconds
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.tables.section_tables import tables_of

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
OF_BROWSER = "not an origin"
HOSTILE = "</script><script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(tiny_run: RunDirectory) -> str:
    return run_as_page(tiny_run)


@pytest.fixture
def record(tiny_run: RunDirectory) -> Record:
    return load_record(tiny_run)


def test_every_table_of_the_record_is_there(page: str, record: Record) -> None:
    for table in tables_of(record):
        if table.name not in ("findings", "modules", "tree"):
            assert f'id="{table.name}"' in page
    for anchor in ("findings", "trust", "step-times", "timeline", "modules", "tree"):
        assert page.count(f'id="{anchor}"') == 1


def test_the_head_says_what_was_measured_and_when(page: str, record: Record) -> None:
    assert record.timing is not None and record.memory is not None
    head = page[: page.index("<body>")]
    step = f"{milliseconds(record.timing.step.median_ms)} a step"
    assert f"<title>tiny · {step}" in head and "sysbench-tui</title>" in head
    (about,) = re.findall(r'<meta name="description" content="([^"]+)">', head)
    assert step in about and format_bytes(record.memory.peak_allocated_bytes) in about
    day = time.strftime("%Y-%m-%d", time.gmtime(record.created_ns / 1e9))
    assert day in about and f'<time datetime="{day}T' in page


def test_the_contents_have_the_names_of_the_sections(page: str) -> None:
    contents = page[page.index("<nav>") : page.index("</nav>")]
    assert '<a href="#ledger">Memory ledger</a>' in contents
    assert '<a href="#tree">The traced step</a>' in contents
    assert '<a href="#step-times">Steps</a>' in contents
    links = re.findall(r'href="#([^"]+)"', contents)
    assert all(page.count(f'id="{anchor}"') == 1 for anchor in links)


def test_the_tree_begins_with_the_step_and_has_the_layers(page: str) -> None:
    tree = page[page.index('id="tree"') :]
    assert ">step</span>" in tree
    assert ">blocks." in tree


def test_nothing_is_fetched_from_anywhere(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_hostile_names_stay_text(record: Record) -> None:
    assert record.kernels is not None
    rows = [msgspec.structs.replace(row, name=HOSTILE) for row in record.kernels.rows]
    kernels = msgspec.structs.replace(record.kernels, rows=rows)
    changed = msgspec.structs.replace(record, kernels=kernels)
    page = run_page(changed, tables_of(changed))
    assert "alert(1)" in page
    assert "<img" not in page
    assert page.count("<script>") == 1


def test_a_record_without_any_pass_has_a_page(record: Record) -> None:
    empty = msgspec.structs.replace(record, timing=None, kernels=None, memory=None)
    assert "What was found" in run_page(empty, tables_of(empty))


def test_a_browser_opens_it_from_disk_without_a_request_or_an_error(
    tiny_run: RunDirectory, record: Record, tmp_path: Path
) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium here")
    (path,) = write_export(tiny_run, "html", tmp_path / "run.html")
    log = tmp_path / "net.json"
    options = [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", "--dump-dom"]
    command = [browser, *QUIET, *options, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "CONSOLE" not in done.stderr
    assert record.memory is not None
    shown = re.search(r'id="peak"[^>]*data-bytes="(\d+)"', done.stdout)
    assert shown is not None
    assert int(shown[1]) == record.memory.peak_allocated_bytes
    assert f"({record.memory.peak_allocated_bytes:,} bytes)" in done.stdout
    assert requested_urls(log) == []


def requested_urls(net_log: Path) -> list[str]:
    """Addresses on a network that the browser asked for on behalf of a page."""
    events = json.loads(net_log.read_text())["events"]
    params = [event.get("params", {}) for event in events]
    # The browser's own requests, such as for the time, have no page as their origin.
    of_pages = [each for each in params if each.get("initiator", OF_BROWSER) != OF_BROWSER]
    urls = [str(each.get("url", "")) for each in of_pages]
    return [url for url in urls if url.startswith(("http:", "https:", "ws:", "wss:"))]
