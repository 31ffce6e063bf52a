"""The page docs/robustness.md, made of what the tests in tests/robustness say they try and what happens then."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "robustness.md"
HEAD = """# Hard to break

What was tried, and what happens. Each line is a test in [tests/robustness](../tests/robustness), and this page is
written from them: `python tests/robustness_page.py`. Tests that take the fixture `untouched`, nearly all that have a
model, compare it afterwards bit by bit: hooks, modes, gradient flags, gradients, weights and running statistics are
what they were before.
"""


def page() -> str:
    """The page as it should be: for each file its docstring, for each test or case what it tries and what happens."""
    parts = [HEAD]
    for path in sorted((ROOT / "tests" / "robustness").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        title = (ast.get_docstring(tree) or path.stem).rstrip(".")
        lines = [f"| {tried} | {happens} |" for tried, happens in _cases(tree)]
        parts.append("\n".join([f"## {title}\n", "| tried | what happens |", "|---|---|", *lines, ""]))
    return "\n".join(parts)


def _cases(tree: ast.Module) -> list[tuple[str, str]]:
    """First two arguments of every call of `tried`, in the order of the file."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tried"]
    calls.sort(key=lambda call: call.lineno)
    return [(ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1])) for call in calls]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
