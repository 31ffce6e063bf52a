"""Tables in documents, written from result files and never by hand.

A document marks the place with `<!-- results:NAME -->` and `<!-- /results -->`; what lies between is replaced.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACE = re.compile(r"(<!-- results:([a-z0-9-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def fill(document: str, folder: str | os.PathLike[str]) -> str:
    """The document with every marked place filled from the result files in a folder.

    Example:
        >>> fill("no place here", "results")
        'no place here'
    """

    def table(match: re.Match[str]) -> str:
        path = Path(folder) / f"{match[2]}.json"
        if not path.is_file():
            raise FileNotFoundError(f"there is no '{path}': make it with hidden-uncertainty reproduce {match[2]}.")
        return match[1] + render(json.loads(path.read_text(encoding="utf-8"))) + match[3]

    return PLACE.sub(table, document)


def render(result: Mapping[str, Any]) -> str:
    """A result as a table in Markdown, with the command that makes it again below.

    Example:
        >>> row = {"train": "a", "ood": "b", "method": "c", "metric": "auroc", "mean": 0.9, "std": 0.01, "n": 5}
        >>> print(render({"rows": [row], "command": "make it", "seconds": 7, "hardware": "a machine"}))
        | trained on | unseen | method | AUROC | repetitions |
        |---|---|---|---|---|
        | a | b | c | 0.900 ± 0.010 | 5 |
        <BLANKLINE>
        `make it` (7 s on a machine)
        <BLANKLINE>
    """
    lines = ["| trained on | unseen | method | AUROC | repetitions |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        if row["metric"] == "auroc" and "mean" in row:
            about = f"| {row['train']} | {row['ood']} | {row['method']} "
            lines.append(about + f"| {row['mean']:.3f} ± {row['std']:.3f} | {row['n']} |")
    made = f"`{result['command']}` ({result['seconds']:.0f} s on {result['hardware']})"
    return "\n".join([*lines, "", made, ""])


def main() -> None:
    """Fill the README of the working tree that this is run in."""
    readme = Path("README.md")
    readme.write_text(fill(readme.read_text(encoding="utf-8"), "results"), encoding="utf-8")


if __name__ == "__main__":
    main()
