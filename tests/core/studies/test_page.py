"""A study as one HTML page: complete, literal, and silent on the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sysbench.core.studies.study_report import StudyReport, study_page, study_report
from tests.half_filled import half_filled

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
)


@pytest.fixture
def report(sysbench_home: Path) -> StudyReport:
    return study_report(half_filled(sysbench_home))


def test_every_part_is_there_once(report: StudyReport) -> None:
    page = study_page(report)
    for anchor in ("times", "figures", "notes", "environment", "commands"):
        assert page.count(f'id="{anchor}"') == 1
    assert "5 of 6 cells have their value, 1 is empty" in page
    assert page.count("<polyline") == 2
    assert page.count("sysbench-tui run ") == 6


def test_nothing_is_fetched_and_names_stay_text(report: StudyReport) -> None:
    page = study_page(report)
    assert "default-src 'none'" in page
    assert not re.search(r"""<[^>]*(src|href)=["']?(https?:)?//""", page)
    assert "alert(1)" in page
    assert "<img" not in page
    assert page.count("<script>") == 1


def test_a_browser_opens_it_without_a_request_or_an_error(
    report: StudyReport, tmp_path: Path
) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium here")
    path, log = tmp_path / "study.html", tmp_path / "net.json"
    path.write_text(study_page(report))
    options = [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", "--dump-dom"]
    command = [browser, *QUIET, *options, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<circle") == 4
    events = json.loads(log.read_text())["events"]
    asked = [str(event.get("params", {}).get("url", "")) for event in events]
    assert not [url for url in asked if url.startswith(("http:", "https:", "ws:", "wss:"))]
