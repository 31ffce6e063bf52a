"""Eight tables of the UCI repository: which uncertainty ranks errors, and which intervals are narrow.

Nothing was chosen by test parts. Training was chosen by the validation parts (a row for validation in one split may be
a test row in another), and the densities are the library's defaults.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from hidden_uncertainty.metrics import ause, rank_correlation, rmse
from hidden_uncertainty.precision import one_thread
from hidden_uncertainty.progress import progress_bar

from ...datasets.uci import NAMES, uci
from ...results import Study, summarise
from .methods import COVERAGE, DROPOUT, HIDDEN, MEMBERS, MOST_ROWS, SAMPLES, Parts, Scored, options, score, train
from .picture import draw

EPOCHS = 1000
QUICK = ("yacht", "energy")
Found = dict[tuple[str, str], list[float]]  # one number per split, by method and metric


@one_thread()
def run(
    *,
    seeds: Sequence[int] = range(5),
    quick: bool = False,
    tables: Sequence[str] | None = None,
) -> Study:
    """Train networks on every split of every table and score the test rows by each method.

    Args:
        seeds: numbers of the splits that come with each table; also of the weights, and of how training rows are split.
        quick: two small tables, one split and a few epochs.
        tables: which tables; None takes all.
    """
    start = time.perf_counter()
    seeds = list(seeds)[:1] if quick else list(seeds)
    epochs = 20 if quick else EPOCHS
    rows: list[dict[str, Any]] = []
    data: dict[str, str] = {}
    sizes: dict[str, Any] = {}
    for name in tables or (QUICK if quick else NAMES):
        read = [uci(name, split) for split in seeds]
        splits = [Parts.of(table) for table in read]
        data |= {f"{name}, split {table.split}": table.digest for table in read}
        first = splits[0]
        sizes[name] = {"features": first.fit.x.shape[1]} | {
            part: len(getattr(first, part)) for part in ("fit", "validation", "calibration", "test")
        }
        found: Found = {}
        with progress_bar(f"uci: {name}", len(seeds)) as bar:
            networks = train(splits, seeds, epochs=epochs)
            for parts, own, seed in zip(splits, networks, seeds, strict=True):
                _measure(score(parts, own, seed, quick=quick), parts, found)
                bar.advance()
        rows += [_row(values, table=name, method=method, metric=what) for (method, what), values in found.items()]
    settings = _settings(sizes, epochs)
    return Study("uci", rows, seeds, data, time.perf_counter() - start, settings, pictures={"": draw(rows)})


def _measure(scored: dict[str, Scored], parts: Parts, found: Found) -> None:
    """Add every method's numbers on one split."""
    plain, y = float((scored["plain"].high - scored["plain"].low).double().mean()), parts.test.y
    for method, scores in scored.items():
        error, wide = (scores.prediction - y).abs(), scores.high - scores.low
        numbers = {
            "rmse": rmse(scores.prediction, y) * parts.unit,
            "coverage": float(((scores.low <= y) & (y <= scores.high)).double().mean()),
            "width": float(wide.double().mean()) * parts.unit,
            "width relative to plain": float(wide.double().mean()) / plain,
        }
        if method != "plain":
            numbers["rank correlation of width with error"] = _correlation(wide, error)
        for kind in ("aleatoric", "epistemic"):
            value = getattr(scores, kind)
            if value is not None:
                numbers[f"rank correlation of {kind} with error"] = _correlation(value, error)
                numbers[f"ause of {kind}"] = ause(uncertainty=value, error=error)
        for metric, number in numbers.items():
            found.setdefault((method, metric), []).append(number)


def _correlation(score: Tensor, error: Tensor) -> float:
    """Rank correlation; 0 for a constant score, which a flow that learned nothing may have."""
    return rank_correlation(score, error) if len(score.unique()) > 1 else 0.0


def _row(values: Sequence[float], **about: Any) -> dict[str, Any]:
    """A row with four significant digits: errors of one table are about 1e-4 in its own units."""
    spread = stdev(values) if len(values) > 1 else 0.0
    return summarise(values, **about) | {"mean": float(f"{fmean(values):.4g}"), "std": float(f"{spread:.4g}")}


def _settings(sizes: dict[str, Any], epochs: int) -> dict[str, Any]:
    return {
        "rows": sizes,
        "training part": "70 % to fit networks and densities, 10 % validation, 20 % calibration",
        "standardised by": "mean and deviation of the rows to fit; rmse and width are in the table's own units",
        "network": f"perceptron, hidden layers {list(HIDDEN)}, mean and log-variance, penultimate layer",
        "training": {rows: options(n, epochs) for rows, n in (("below 2,000 rows", 0), ("from 2,000 rows", 2000))},
        "latent-prediction, latent-label": "LatentDensity with its defaults, on the network that `network` is",
        "outputs-label": "the same, on the two numbers that the network returns: its mean and log-variance",
        "flow-label": f"with ConditionalFlow and its defaults, where there are at most {MOST_ROWS:,} rows to fit",
        "network's aleatoric": "the variance that it predicts",
        "ensemble": f"{MEMBERS} networks: mean variance, and variance of means",
        "mc-dropout": f"{SAMPLES} samples of a network trained with dropout {DROPOUT}: as the ensemble",
        "gaussian-process": f"default kernel, likewise at most {MOST_ROWS:,} rows; its noise is constant",
        "intervals": f"split conformal, asked to cover {COVERAGE}. Their scale is the root of the variance "
        "that the network predicts, also for latent methods, and of aleatoric plus epistemic variance for the others; "
        "plain has none",
        "error": "|y - prediction|, of each method's own prediction",
    }
