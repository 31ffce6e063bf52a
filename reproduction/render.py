"""Tables in documents, written from result files and never by hand.

A document marks the place with `<!-- results:NAME -->` and `<!-- /results -->`; what lies between is replaced.
`<!-- results:NAME/PART -->` asks for a shorter table, where the study has one of that name.
`python -m reproduction.render`, from the root of a clone, fills all documents and writes the page of claims.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .claims.page import page
from .studies import made, renderer

PLACE = re.compile(r"(<!-- results:([a-z0-9-]+)(?:/([a-z0-9-]+))? -->\n).*?(<!-- /results -->)", re.DOTALL)


def fill(document: str, folder: str | os.PathLike[str]) -> str:
    """The document with every marked place filled from the result files in a folder.

    Example:
        >>> fill("no place here", "results")
        'no place here'
    """

    def table(match: re.Match[str]) -> str:
        path = Path(folder) / f"{match[2]}.json"
        if not path.is_file():
            raise FileNotFoundError(f"there is no '{path}': make it with python -m reproduction {match[2]}.")
        return match[1] + render(json.loads(path.read_text(encoding="utf-8")), match[3]) + match[4]

    return PLACE.sub(table, document)


def render(result: Mapping[str, Any], part: str | None = None) -> str:
    """A result, or a part of it, as tables in Markdown, followed by the command that makes it again.

    Example:
        >>> row = {"train": "a", "ood": "b", "method": "c", "metric": "auroc", "mean": 0.9, "std": 0.01, "n": 5}
        >>> made = {"name": "digits", "command": "make it", "seconds": 7, "hardware": "a machine"}
        >>> print(render({**made, "rows": [row]}))
        | trained on | unseen | method | AUROC | repetitions |
        |---|---|---|---|---|
        | a | b | c | 0.900 ± 0.010 | 5 |
        <BLANKLINE>
        `make it` (7 s on a machine)
        <BLANKLINE>
    """
    command, seconds = made(result, part)
    footer = f"`{today(command)}` ({seconds:.0f} s on {result['hardware']})"
    return f"{renderer(result['name'], part)(result)}\n\n{footer}\n"


def today(command: str) -> str:
    """A command as it is called now, from one that an older result file holds.

    Example:
        >>> today("hidden-uncertainty reproduce uci --quick")
        'python -m reproduction uci --quick'
    """
    return re.sub(r"^hidden-uncertainty reproduce\b", "python -m reproduction", command)


def main() -> None:
    """Fill the documents of the clone that this is run in, and write the page of claims."""
    for document in (Path("README.md"), Path("results/README.md"), *sorted(Path("docs").glob("*.md"))):
        before = document.read_text(encoding="utf-8")
        after = fill(before, "results")
        if after != before:
            document.write_text(after, encoding="utf-8")
    Path("results/claims.md").write_text(page("results"), encoding="utf-8")


if __name__ == "__main__":
    main()
