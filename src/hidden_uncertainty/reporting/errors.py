"""Whether errors follow uncertainty: accuracy and probabilities of classes, errors and intervals of numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import metrics
from .alarms import agreement, evenly, series
from .markup import Block, between, number, percent, share, table
from .scored import COVERAGES, Scored

BY = {"epistemic": "epistemic uncertainty", "aleatoric": "aleatoric uncertainty", "expected": "expected error"}
KEPT = 50  # of the least uncertain, at least a 50th is kept: the accuracy of very few is noise


def errors(scored: Scored, what: str, charts: dict[str, Any]) -> dict[str, Block]:
    """The blocks of the page that labels allow."""
    if "correct" not in scored and "error" not in scored:
        return {"rejection": "This part needs labels. The loader gives none, or not one per prediction."}
    pixels = scored.detector.pixels is not None
    of = f"{len(scored['by epistemic']):,} {'pixels, drawn evenly over the images' if pixels else what}"
    if "correct" in scored:
        return {"rejection": _rejection(scored, of, charts), "reliability": _reliability(scored, charts)}
    return {"numbers": _numbers(scored, of, charts), "intervals": _intervals(scored)}


def _rejection(scored: Scored, of: str, charts: dict[str, Any]) -> Block:
    correct, lines, rows = scored["correct"], [], []
    for name, words in BY.items():
        if f"by {name}" in scored:
            kept, accuracy = metrics.accuracy_rejection(scored[f"by {name}"], correct)
            some = slice(len(kept) // KEPT, None)
            lines.append(series(f"by {words}", "line", (1 - kept[some]).flip(0), accuracy[some].flip(0)))
            left = [float(accuracy[max(0, math.ceil(part * len(kept)) - 1)]) for part in (1.0, 0.9, 0.8, 0.5)]
            rows.append([words, *map(percent, left), f"{100 * metrics.aurc(scored[f'by {name}'], correct):.2f}\u00a0%"])
    charts["rejection"] = {"series": lines}
    head = ["the most uncertain by", "none refused", "10 % refused", "20 % refused", "50 % refused", "mean risk"]
    return {"of": of, "table": table("Accuracy of what is left", head, rows)}


def _reliability(scored: Scored, charts: dict[str, Any]) -> Block:
    if "confidence" not in scored:
        return "This detector tells no probability of one class per input, so there is nothing to check."
    stated, correct = scored["confidence"].double(), scored["correct"]
    bins = (10 * stated).ceil().long().clamp(1, 10) - 1
    rows, points, spans = [], [], []
    for i in bins.unique().tolist():
        said, right = float(stated[bins == i].mean()), correct[bins == i]
        points.append((said, float(right.double().mean())))
        spans.append((*series("", "line", [said] * 2, between(int(right.sum()), len(right))), 0))  # in the first colour
        cells = f"{10 * i} to {10 * i + 10} %", f"{len(right):,}", percent(said)
        rows.append([*cells, share(int(right.sum()), len(right))])
    found = series("found, with 95 % interval", "dots", *zip(*points, strict=True))
    honest = series("honest", "dashed", [0, 1], [0, 1])
    charts["reliability"] = {"series": [found, honest, *spans]}
    head = ["stated", "inputs", "mean stated", "right, with 95 % interval"]
    gap = percent(metrics.expected_calibration_error(stated, correct, bins=10))
    return {"gap": gap, "table": table("Probability of the predicted class", head, rows)}


def _numbers(scored: Scored, of: str, charts: dict[str, Any]) -> Block:
    error, lines, rows = scored["error"], [], []
    names = [name for name in BY if f"by {name}" in scored]
    for name in names:
        by = scored[f"by {name}"]
        removed, rest = metrics.sparsification(uncertainty=by, error=error)
        some = slice(0, len(rest) - len(rest) // KEPT)
        lines.append(series(f"by {BY[name]}", "line", removed[some], rest[some]))
        rows.append([BY[name], agreement(by, error), f"{metrics.ause(uncertainty=by, error=error):.3f}"])
    lines.append(series("best possible", "dashed", *metrics.sparsification_oracle(error)))
    charts["rejection"] = {"series": lines}
    main = "expected" if "expected" in names else "epistemic"
    by = scored[f"by {main}"].double()
    picked = evenly(len(by))
    low, high = (by.sort().values[round(q * (len(by) - 1))] for q in (0.005, 0.995))  # a few would stretch the axis
    picked = picked[(by[picked] >= low) & (by[picked] <= high)]
    charts["errors"] = {"series": [series("", "dots", by[picked], error[picked])]}
    head = ["uncertainty", "rank correlation", "area to the best"]
    unit = "in the output’s unit" if main == "expected" else "in the detector’s unit"
    found = {"of": of, "rmse": number(float(error.square().mean().sqrt())), "by": f"{BY[main]}, {unit}"}
    return {**found, "table": table("How well uncertainty ranks errors", head, rows)}


def _intervals(scored: Scored) -> Block:
    rows: list[list[Any]] = []
    for part in COVERAGES:
        if f"held {part}" in scored:
            held, width = scored[f"held {part}"], torch.nanmean(scored[f"width {part}"].double())
            rows.append([percent(part), share(int(held.sum()), len(held)), number(float(width))])
    if not rows:
        return "There are no intervals: they need calibration data with labels."
    pixels = scored.detector.pixels
    text = "" if pixels is None else f"An image counts if all but {percent(pixels.share)} of its pixels lie inside."
    head = ["asked", "inside, with 95 % interval", "mean width, in the output’s unit"]
    return {"pixels": text, "table": table("Intervals of detector.interval(u, coverage)", head, rows)}
