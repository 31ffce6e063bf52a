"""All methods on digits that a small network never saw, as a result file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hidden_uncertainty.comparison import Comparison
from hidden_uncertainty.demo import digits

from ...results import Study, digest
from . import measure
from .picture import draw


def run(*, seeds: Sequence[int] = range(5), quick: bool = False) -> Study:
    """Train networks for each seed, and compare all methods on the same digits.

    Args:
        seeds: of split, weights, training and noise.
        quick: one seed, three epochs, two members and one round.
    """
    start = time.perf_counter()
    found = measure.compare_methods(seeds=seeds, quick=quick)
    rows = [
        {"train": "digits 0-7"}
        | {key: row[key] for key in ("ood", "method", "metric")}
        | {"mean": _rounded(row["value"]), "std": _rounded(row["std"]), "n": row["n"]}
        for row in found.rows
    ]
    everything = digits()
    images = [part.images for part in (everything.train, everything.calibration, everything.test)]
    about = {key: value for key, value in found.about.items() if key not in ("hardware", "versions")}
    return Study(
        "compare-digits",
        rows,
        list(seeds)[:1] if quick else list(seeds),
        {"digits": digest(*images)},
        time.perf_counter() - start,
        {**(measure.QUICK if quick else measure.FULL), "run": about},
        pictures={"": draw(found)},
    )


def read(result: Mapping[str, Any]) -> Comparison:
    """The comparison that a result file holds, to print it or draw it again.

    Args:
        result: what `compare-digits.json` holds.
    """
    rows = [
        {key: row[key] for key in ("ood", "metric", "std", "n")}
        | {
            "method": row["method"].replace("Gaussian a class", "Gaussian per class"),
            "value": row["mean"],
        }  # older files
        for row in result["rows"]
    ]
    return Comparison(rows, {**result["settings"]["run"], "hardware": result["hardware"]})


def _rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")
