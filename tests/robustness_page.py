"""The page docs/robustness.md, made of what tests try and what happens then."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "robustness.md"
HEAD = """# Robustness

What was tried to break the library, and what happens. Each line is a test, and this page is written from the
[tests](../tests): `python tests/robustness_page.py`. Nearly all tests that have a model compare it afterwards bit by
bit: hooks, modes, gradient flags, gradients, weights and running statistics are what they were before.
"""
REVIEW = """## What a review of version 0.1.0 broke

Each line is a test in [tests/review](../tests/review). It uses names of version 0.1.0 and fails there by its assertion:
`python tests/review/against.py CHECKOUT_OF_0.1.0` runs them all against it.
"""


def page() -> str:
    """The page: what tests in tests/robustness try, and those that elsewhere.txt names, a section for each title."""
    sections: dict[str, list[str]] = {}
    for path in sorted((TESTS / "robustness").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        title = (ast.get_docstring(tree) or path.stem).rstrip(".")
        sections[title] = [f"| {tried} | {happens} |" for tried, happens in _cases(tree)]
    for line in (TESTS / "robustness" / "elsewhere.txt").read_text(encoding="utf-8").splitlines():
        title, tried, happens, test = line.split(" | ")
        file, _, name = test.partition("::")
        if f"def {name}(" not in (TESTS / file).read_text(encoding="utf-8"):
            raise ValueError(f"elsewhere.txt names {test}, which is not there")
        sections.setdefault(title, []).append(f"| {tried} | {happens} |")
    tables = [[f"## {title}\n", "| tried | what happens |", "|---|---|", *rows, ""] for title, rows in sections.items()]
    mended = [f"| {' | '.join(row)} |" for row in review()]
    tables.append([REVIEW, "| | tried | version 0.1.0 | now |", "|---|---|---|---|", *mended, ""])
    return "\n".join([HEAD, *(line for table in tables for line in table)])


def review() -> list[list[str]]:
    """What a review found, by its numbers: the number, what was tried, what happened, what happens now."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((TESTS / "review").glob("test_*.py"))]
    rows = [row for tree in trees for row in _cases(tree, "found")]
    return sorted(rows, key=lambda row: (row[0][0], int(row[0][1:])))


def _cases(tree: ast.Module, name: str = "tried") -> list[list[str]]:
    """The arguments of every call of `tried` or `found`, in the order of the file."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name]
    return [[ast.literal_eval(arg) for arg in call.args] for call in sorted(calls, key=lambda call: call.lineno)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
