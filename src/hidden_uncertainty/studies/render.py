"""Tables in documents, written from result files and never by hand.

A document marks the place with `<!-- results:NAME -->` and `<!-- /results -->`; what lies between is replaced.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Result = Mapping[str, Any]

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


def render(result: Result) -> str:
    """A result as a table in Markdown, with the command that makes it again below.

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
    made = f"`{result['command']}` ({result['seconds']:.0f} s on {result['hardware']})"
    return f"{RENDERERS[result['name']](result)}\n\n{made}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _digits(result: Result) -> str:
    rows = [
        [row["train"], row["ood"], row["method"], _spread(row), str(row["n"])]
        for row in result["rows"]
        if row["metric"] == "auroc" and "mean" in row
    ]
    return table(["trained on", "unseen", "method", "AUROC", "repetitions"], rows)


def _compare_digits(result: Result) -> str:
    from .compare_digits import read

    return read(result).to_markdown().rstrip()


def _toy_regression(result: Result) -> str:
    found = {(row["method"], row["region"], row["metric"]): row for row in result["rows"]}
    columns = {
        "AUROC, gap": ("gap", "auroc"),
        "AUROC, outside": ("outside", "auroc"),
        "rank correlation with the process": ("grid", "rank correlation with gaussian-process"),
        "with the ensemble": ("grid", "rank correlation with ensemble"),
        "RMSE inside": ("inside", "rmse"),
        "in the gap": ("gap", "rmse"),
    }
    rows = [
        [method, *(_spread(found[key]) if (key := (method, *column)) in found else "" for column in columns.values())]
        for method in dict.fromkeys(row["method"] for row in result["rows"])
    ]
    return table(["method", *columns], rows)


def _uci(result: Result) -> str:
    """Medians over tables, of each method; tables that a method was not run on do not count for it."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in result["rows"]:
        values.setdefault((row["method"], row["metric"]), []).append(row["mean"])
    columns = {
        "tables": "rmse",
        "aleatoric with error": "rank correlation of aleatoric with error",
        "epistemic with error": "rank correlation of epistemic with error",
        "AUSE aleatoric": "ause of aleatoric",
        "AUSE epistemic": "ause of epistemic",
        "coverage": "coverage",
        "width / plain": "width relative to plain",
    }
    rows = []
    for method in dict.fromkeys(method for method, _ in values):
        cells = [str(len(values[method, "rmse"]))]
        for metric in list(columns.values())[1:]:
            cells.append(f"{median(values[method, metric]):.2f}" if (method, metric) in values else "")
        rows.append([method, *cells])
    return table(["method", *columns], rows)


def _table_1(result: Result) -> str:
    """Cells beside the paper's, those that disagree in bold; then how many agree under every alternative reading."""
    from .table_1 import agrees, margin

    cells = [row for row in result["rows"] if row["metric"] == "auroc" and row["variant"] == "default"]
    methods = list(dict.fromkeys(row["method"] for row in cells))
    found = {(row["train"], row["ood"], row["method"]): row for row in cells}
    rows = []
    for train, ood in dict.fromkeys((row["train"], row["ood"]) for row in cells):
        line = [f"{train} → {ood}"]
        for method in methods:
            row = found[train, ood, method]
            text = f"{row['mean']:.3f} ± {row['std']:.3f} / {row['paper_mean']:.3f} ± {row['paper_std']:.3f}"
            line.append(text if agrees(row) else f"**{text}**")
        rows.append(line)
    apart: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["metric"] == "auroc" and not agrees(row):
            cell = f"{row['train']} → {row['ood']} {row['method']} {row['mean']:.3f}"
            apart.setdefault(row["variant"], []).append(cell)
    agreement = [
        [row["variant"], f"{row['mean']} of {row['n']}", "; ".join(apart.get(row["variant"], []))]
        for row in result["rows"]
        if row["metric"] == "cells within margin"
    ]
    return "\n\n".join(
        [
            table(["ours / paper", *methods], rows),
            f"Bold: farther from the paper than {margin(0, 0)} and than two combined deviations.",
            table(
                ["reading of what the paper leaves open", "cells that agree", "of those it changes, these do not"],
                agreement,
            ),
            _times(result["settings"]),
        ]
    )


def _layer_depth(result: Result) -> str:
    from ._layer_depth_table import render

    return render(result)


def _regularisation(result: Result) -> str:
    from ._regularisation_table import render

    return render(result)


def _segmentation(result: Result) -> str:
    from ._segmentation_table import render

    return render(result)


def _depth_estimation(result: Result) -> str:
    from ._depth_table import render

    return render(result)


def _times(settings: Mapping[str, Any]) -> str:
    """Where the seconds went, and how much of the device training made use of, where that was measured."""
    text = "Seconds: " + ", ".join(f"{what} {seconds:.0f}" for what, seconds in settings["seconds"].items()) + "."
    shares = dict(settings.get("share of the matrix peak while training", {}))
    if not shares:
        return text
    peak, _ = shares.pop("peak in TFLOP/s"), shares.pop("GFLOP a step")
    each = ", ".join(f"{share:.1%} on {train}" for train, share in shares.items())
    return f"{text} Training reached {each} of the rate of a large matrix product in bfloat16, {peak:.0f} TFLOP/s."


def _spread(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f} ± {row['std']:.3f}"


RENDERERS: dict[str, Callable[[Result], str]] = {
    "digits": _digits,
    "compare-digits": _compare_digits,
    "toy-regression": _toy_regression,
    "uci": _uci,
    "table-1-fcnet": _table_1,
    "table-1-resnet": _table_1,
    "layer-depth": _layer_depth,
    "regularisation": _regularisation,
    "segmentation": _segmentation,
    "depth-estimation": _depth_estimation,
}


def main() -> None:
    """Fill the documents of the working tree that this is run in, and write the page of claims."""
    for document in (Path("README.md"), Path("results/README.md"), *sorted(Path("docs").glob("*.md"))):
        before = document.read_text(encoding="utf-8")
        after = fill(before, "results")
        if after != before:
            document.write_text(after, encoding="utf-8")
    from .claims import page

    Path("results/claims.md").write_text(page("results"), encoding="utf-8")


if __name__ == "__main__":
    main()
