"""Print figures of the code's size: lines, modules, imports in functions, repeated names, words.

``python tests/validation/house.py [-v] [ROOT]``; ``-v`` lists the repeated names.
Nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("core", "tui")
HERE = Path(__file__).parents[2]
WORDS = [line.partition("->")[0] for line in (HERE / "docs/words.txt").read_text().splitlines()]
PHRASES = (HERE / "docs/phrases.txt").read_text().splitlines()
REPLACED = re.compile(rf"\b({'|'.join([*WORDS, *PHRASES])})\b", re.IGNORECASE)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def inner_imports(tree: ast.Module) -> set[int]:
    """Line numbers of the import statements inside functions."""
    functions = (node for node in ast.walk(tree) if isinstance(node, DEFINITIONS[:2]))
    return {
        inner.lineno
        for function in functions
        for inner in ast.walk(function)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }


def public_names(tree: ast.Module) -> Iterator[str]:
    """Names of the classes and functions at the top of a module."""
    for node in tree.body:
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
            yield node.name


def main() -> None:
    parser = argparse.ArgumentParser(description="figures of the code's size")
    parser.add_argument("-v", "--verbose", action="store_true", help="list the repeated names")
    parser.add_argument("root", nargs="?", type=Path, default=HERE, help="a checkout")
    arguments = parser.parse_args()
    paths = [path for top in PACKAGES for path in sorted((arguments.root / top).rglob("*.py"))]
    lines = imports = importers = 0
    places: defaultdict[str, list[str]] = defaultdict(list)
    words: Counter[str] = Counter()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines += len(text.splitlines())
        words.update(word.lower() for word in REPLACED.findall(text))
        inner = len(inner_imports(tree))
        imports += inner
        importers += inner > 0
        for name in public_names(tree):
            places[name].append(path.relative_to(arguments.root).as_posix())
    names = Counter(path.name for path in paths if not path.name.startswith("__"))
    modules = {name: count for name, count in names.items() if count > 1}
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    rows = {
        "lines": lines,
        "modules": len(paths),
        "folders": len({path.parent for path in paths}),
        "imports inside functions": f"{imports} in {importers} modules",
        "public names defined twice": len(repeated),
        "module names used twice": len(modules),
        "words that are replaced": f"{words.total()} {dict(words.most_common())}",
    }
    for title, figure in rows.items():
        print(f"{title:28}{figure}")
    if arguments.verbose:
        for name, where in sorted(repeated.items(), key=lambda item: -len(item[1])):
            print(f"  {name}: {', '.join(where)}")
        for name, count in sorted(modules.items()):
            print(f"  {name}: {count} modules")


if __name__ == "__main__":
    main()
