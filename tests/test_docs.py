"""Check the documents: links, paths, symbols, the tree, the API page, the version."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import sysbench.core

ROOT = Path(__file__).parents[1]
CODE = ("core", "tui", "profiles")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", ".github/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:core|tui|tests|docs|examples|profiles|\.github)(?:/[\w.-]+)+/?")
TREE_LINE = re.compile(r"^( *)([\w.-]+)/ +(\S.*)$")
TO_COME = ("docs/validation/",)
"""Pages that only a GPU machine writes."""
MAX_DECISION_LINES = 40

MAKE_REFERENCE = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
MAKE_API = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
RELEASE_NOTES = runpy.run_path(str(ROOT / ".ci" / "release_notes.py"))["release_notes"]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """Markdown without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(path: Path) -> set[str]:
    """Names that a link into a page may have after ``#``, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def tree_of(page: str) -> dict[str, str]:
    """Folders of the first tree on a page, each with its description."""
    block = next(
        block for block in text_of(page).split("```") if re.search(r"^core/ ", block, re.M)
    )
    folders: dict[str, str] = {}
    above: list[str] = []
    for line in block.splitlines():
        if match := TREE_LINE.match(line):
            above = [*above[: len(match[1]) // 2], match[2]]
            folders["/".join(above)] = match[3]
    return folders


def folders_with_code(*tops: str) -> Iterator[str]:
    for top in tops:
        for init in (ROOT / top).rglob("__init__.py"):
            yield init.parent.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in LINK.findall(without_code(text_of(page))):
        if target.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors_of(path), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_exists(page: str) -> None:
    for quoted in QUOTED.findall(without_code(text_of(page))):
        name = quoted.partition(":")[0].rstrip(",")
        if PATH.fullmatch(name) and not name.startswith(TO_COME):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_every_test_that_is_named_exists() -> None:
    for quoted in (quoted for page in PAGES for quoted in QUOTED.findall(text_of(page))):
        path, _, test = quoted.partition("::")
        if test and PATH.fullmatch(path):
            assert re.search(rf"^ *(async )?def {test}\(", text_of(path), re.M), quoted


def test_the_tree_of_contributing_has_a_line_for_every_folder() -> None:
    tree = tree_of("CONTRIBUTING.md")
    expected = set(folders_with_code("core", "tui"))
    assert expected - tree.keys() == set()
    assert [folder for folder in tree if not (ROOT / folder).is_dir()] == []


def test_the_tree_of_the_readme_is_a_part_of_that_of_contributing() -> None:
    short, full = tree_of("README.md"), tree_of("CONTRIBUTING.md")
    assert short.items() - full.items() == set()
    of_code = {folder for folder in full if folder.startswith(("core/", "tui/"))}
    assert {folder for folder in of_code if folder.count("/") == 1} - short.keys() == set()


def test_decisions_are_short_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    for path in folder.glob("0*.md"):
        assert len(path.read_text().splitlines()) <= MAX_DECISION_LINES, path
        assert f"({path.name})" in index, path


def test_the_api_page_is_what_the_docstrings_say() -> None:
    assert MAKE_API["api_page"]() == text_of("docs/api.md"), "run `make api`"


@pytest.mark.parametrize("page", MAKE_REFERENCE["PAGES"], ids=lambda page: page.name)
def test_the_reference_is_what_the_registries_and_types_say(page: Path) -> None:
    assert MAKE_REFERENCE["PAGES"][page]() == page.read_text(encoding="utf-8"), "run `make api`"


def test_the_reference_has_a_sentence_about_every_column() -> None:
    tables = [
        table
        for path in (ROOT / "core" / "tables").rglob("*.py")
        for table in MAKE_REFERENCE["tables_in"](path)
    ]
    assert len(tables) > 50
    columns = {
        f"{table.name}.{name}": about for table in tables for name, about in table.columns.items()
    }
    assert [name for name, about in columns.items() if not about] == []


def test_the_site_has_a_place_for_every_page() -> None:
    config = yaml.load(text_of("mkdocs.yml"), yaml.BaseLoader)
    docs = ROOT / "docs"
    placed: list[str] = []
    for name in pages_in(config["nav"]):
        folder = docs / name.removesuffix("*.md")
        found = sorted(folder.glob("*.md")) if name.endswith("*.md") else [docs / name]
        placed += [path.relative_to(docs).as_posix() for path in found]
    of_the_root = {f"project/{page}" for page in PAGES if "/" not in page}
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert {name for name in placed if not name.startswith("project/")} == pages
    assert {name for name in placed if name.startswith("project/")} < of_the_root


def pages_in(nav: object) -> Iterator[str]:
    """The pages that a part of the site's navigation names."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict | list):
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_in(part)


def test_public_names_are_those_that_resolve() -> None:
    assert set(sysbench.core.__all__) == set(sysbench.core._MODULES)
    for name in sysbench.core.__all__:
        home = importlib.import_module(sysbench.core._MODULES[name])
        assert getattr(sysbench.core, name) is getattr(home, name)
    with pytest.raises(AttributeError):
        _ = sysbench.core.no_such_name


def test_public_names_have_the_types_that_checkers_see() -> None:
    source = Path(sysbench.core.__file__).read_text()
    imported = {
        alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sysbench.")
        for alias in node.names
    }
    assert imported == sysbench.core._MODULES


def test_the_version_has_one_place() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assigned = re.compile(rf"__version__\s*=|[\"']{re.escape(version)}[\"']")
    for top in CODE:
        for path in (ROOT / top).rglob("*.py"):
            assert not assigned.search(path.read_text()), path
    assert metadata.version("sysbench-tui")


PYPROJECT = '[project]\nversion = "0.2.0"\n'
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2027-01-31\n\n- B.\n\n## 0.1.0 - 2026-12-01\n"
)


def test_release_notes_are_the_part_of_the_tagged_version() -> None:
    assert RELEASE_NOTES("v0.2.0", PYPROJECT, CHANGELOG) == "- B.\n"


@pytest.mark.parametrize(
    ("tag", "changelog", "message"),
    [("v0.2.1", CHANGELOG, "version 0.2.0"), ("v0.2.0", "## Unreleased\n- B.\n", "no heading")],
)
def test_a_tag_without_its_version_or_notes_is_refused(
    tag: str, changelog: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RELEASE_NOTES(tag, PYPROJECT, changelog)
