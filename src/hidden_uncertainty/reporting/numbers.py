"""The numbers of a page: thresholds, how well outliers are told apart, whether errors follow uncertainty, p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import metrics
from ..detector import Detector
from ..scoring.calibration import Calibration
from .markup import Block, Html, between, joined, number, percent, share, span, table, tag
from .scored import COVERAGES, Scored

# False-alarm rates: those of the slider, and those of the table.
RATES = [i / 1000 for i in (*range(1, 10), *range(10, 100, 5), *range(100, 501, 25))]
TABLE = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
BINS, POINTS, DOTS = 48, 200, 800
BY = {"epistemic": "epistemic uncertainty", "aleatoric": "aleatoric uncertainty", "expected": "expected error"}
KEPT = 50  # of the least uncertain, at least a 50th is kept: the accuracy of very few is noise
Series = tuple[str, str, list[float], list[float]]  # name, kind, x, y


class View(NamedTuple):
    """One score of all sets: the detector's own, or that of a term."""

    name: str
    term: str | None  # whose score it is; None is the detector's own
    unit: str
    calibration: Calibration | None
    scores: list[Tensor]  # of each set, (n,)

    @property
    def samples(self) -> int:
        """How many calibration scores there are."""
        return 0 if self.calibration is None else len(self.calibration.scores)

    def above(self, threshold: float) -> list[int]:
        """How many of each set are above a threshold."""
        return [int((some.double() > threshold).sum()) for some in self.scores]

    def rates(self, rates: Sequence[float]) -> list[tuple[float, float]]:
        """Those false-alarm rates that there are enough calibration scores for, with their thresholds."""
        known, enough = self.calibration, [rate for rate in rates if rate * (self.samples + 1) >= 1]
        return [] if known is None else [(rate, known.threshold(rate)) for rate in enough]

    def true_rate(self, threshold: float) -> str:
        """Where the true false-alarm rate of a threshold lies with 95 %, over the draw of the calibration scores."""
        from scipy.special import betaincinv

        assert self.calibration is not None
        beyond = self.samples + 1 - int((self.calibration.reach.double() <= threshold).sum())  # at least 1
        return span(*betaincinv(beyond, self.samples + 1 - beyond, [0.025, 0.975]))

    def start(self, threshold: float | None) -> int:
        """Which of `RATES` is shown first: that of the detector's threshold, or 5 %."""
        rates = self.rates(RATES)
        away = [abs(rate - 0.05 if threshold is None else at - threshold) for rate, at in rates]
        # Of rates with one threshold, one of the table, or the highest: that is what a user asks for.
        return min(range(len(rates)), key=lambda i: (away[i], rates[i][0] not in TABLE, -i), default=0)


def views(detector: Detector, sets: Sequence[Scored]) -> list[View]:
    """The detector's own score first, then those of its terms where there are several."""
    head = detector._fitted().head
    names = {name: name if term.layer is None else f"layer {name}" for name, term in detector.terms.items()}
    own = names[head.leading] if head.combination.single else "all terms together"
    found = [View(own, None, detector.unit, head.calibration, [s["score"] for s in sets])]
    for name, term in head.terms.items() if len(head.terms) > 1 else ():
        found.append(View(names[name], name, term.method.unit, term.calibration, [s[f"score {name}"] for s in sets]))
    return found


def _evenly(count: int, most: int = DOTS) -> Tensor:
    """Some of so many places, from the first to the last."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64, device="cpu").round().long()


def _series(name: str, kind: str, x: Tensor | Sequence[float], y: Tensor | Sequence[float]) -> Series:
    """What a chart draws, in numbers of eight digits; a line has at most `POINTS` points."""
    x, y = (torch.as_tensor(part, dtype=torch.float64, device="cpu") for part in (x, y))
    if kind in ("line", "dashed"):
        x, y = x[_evenly(len(x), POINTS)], y[_evenly(len(y), POINTS)]
    x8, y8 = ([float(f"{value:.8g}") for value in part.tolist()] for part in (x, y))
    return name, kind, x8, y8


def _histograms(view: View, names: Sequence[str]) -> dict[str, Any]:
    """The chart of all sets' scores; what lies beyond the ends counts in the last bars."""
    inside, *outside = [some[some.isfinite()].double().sort().values for some in view.scores]
    low, high = (float(inside[0]), float(inside[-1 - len(inside) // 200])) if len(inside) else (0.0, 1.0)
    reach = 1.5 * (high - low) or 1.0  # far outliers would press all others into one bar
    ends = [(float(some[0]), float(some[-1 - len(some) // 30])) for some in outside if len(some)]
    high = max(high, *(min(high + reach, end) for _, end in ends), *(at for _, at in view.rates(RATES)[4:5]), low)
    high = max(high, low + 1e-5 * max(1.0, abs(low)))
    low = min(low, *(max(low - reach, end) for end, _ in ends), low)
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64, device="cpu")
    shares = [torch.histogram(some.double().clamp(low, high), edges).hist / len(some) for some in view.scores]
    top = max(float(some.max() if i == 0 else some[1:-1].max()) for i, some in enumerate(shares))
    label = f"score of {view.name}, in {view.unit}"
    drawn = [_series(name, "steps", edges, some) for name, some in zip(names, shares, strict=True)]
    return {"series": drawn, "x": [low, high], "y": [0, 1.08 * top], "xlabel": label}


def _roc(view: View, names: Sequence[str]) -> list[Series]:
    lines = [_series("chance", "dashed", [0, 1], [0, 1])]
    for name, some in zip(names[1:], view.scores[1:], strict=True):
        area = metrics.auroc(negative=view.scores[0], positive=some)
        curve = metrics.roc_curve(negative=view.scores[0], positive=some)
        lines.append(_series(f"{name} (AUROC {area:.3f})", "line", *curve))
    return lines


def interactive(found: list[View], sets: Sequence[Scored], threshold: float | None) -> dict[str, Any]:
    """What the page shows as one moves its controls."""
    names, sizes = [one.name for one in sets], [one.count for one in sets]
    shown = []
    for view in found:
        rates = []
        for rate, at in view.rates(RATES):
            counts = zip(view.above(at), sizes, strict=True)
            rates.append([rate, at, [[count, *(round(end, 5) for end in between(count, n))] for count, n in counts]])
        drawn = _roc(view, names) if len(sets) > 1 else None
        shown.append({"name": view.name, "scores": _histograms(view, names), "roc": drawn, "rates": rates})
    return {"views": shown, "sets": names, "sizes": sizes, "start": found[0].start(threshold)}


def thresholds(view: View, sets: Sequence[Scored], own: float | None, what: str) -> Block:
    """The table of thresholds."""
    if not view.rates(RATES):
        return (
            "There are no thresholds: the detector was not calibrated, or with too few inputs. Calibrate it with some "
            "hundred inputs that the network was not trained on: detector.calibrate(unseen)."
        )
    rows = [(percent(rate), at) for rate, at in view.rates(TABLE)]
    if own is not None:
        rows.append(("set in the detector", own))
    cells = []
    for name, at in rows:
        caught = [share(count, s.count) for count, s in zip(view.above(at), sets, strict=True)]
        cells.append([name, f"{number(at)}\u00a0{view.unit}", view.true_rate(at), *caught])
    each = [f"false alarms: {sets[0].name}", *(f"caught: {s.name}" for s in sets[1:])]
    head = ["asked", "threshold", "true rate", *each]
    fewest = "" if len(sets) > 1 else "How many outliers are caught is not known, as none were given (outliers=)."
    if view.samples < 999:
        fewest += f" Rates below {percent(1 / (view.samples + 1))} need more calibration {what}."
    caption = f"The rate of false alarms that you ask for, and what you get for it, by the score of {view.name}"
    return {"table": table(caption, head, cells), "n": f"{view.samples:,}", "fewest": fewest}


def telling(view: View, sets: Sequence[Scored]) -> Block:
    """How well outliers are told apart, by the detector's own score."""
    if len(sets) == 1:
        return "There is no ROC curve: it compares with outliers, and none were given (outliers=)."
    rows = []
    for one, some in zip(sets[1:], view.scores[1:], strict=True):
        pair: Any = {"negative": view.scores[0], "positive": some}
        areas = f"{metrics.auroc(**pair):.3f}", f"{metrics.average_precision(**pair):.3f}"
        rows.append([one.name, f"{one.count:,}", *areas, percent(metrics.fpr_at_tpr(**pair))])
    head = ["outliers", "how many", "AUROC", "average precision", "false alarms at 95 % caught"]
    return {"table": table(f"Outliers told from {sets[0].count:,} others by the score of {view.name}", head, rows)}


def layers(found: list[View], sets: Sequence[Scored], weights: dict[str, float]) -> Block:
    """The terms side by side: how well each tells outliers apart."""
    if len(found) == 1:
        return f"The detector has one term ({found[0].name}), so there is nothing to compare."
    if len(sets) == 1:
        return "Terms are compared by outliers, and none were given (outliers=)."
    rows = []
    for view in found:
        inside, *outside = view.scores
        told = [_bar(metrics.auroc(negative=inside, positive=some)) for some in outside]
        rows.append([view.name, f"{weights[view.term]:.2f}" if view.term in weights else "", *told])
    head = ["score of", "weight", *(f"AUROC: {s.name}" for s in sets[1:])]
    caption = "How well each term alone tells outliers apart, and what its word weighs in the detector’s score"
    return {"table": table(caption, head, rows)}


def _bar(value: float) -> Html:
    return joined(f"{value:.3f}", tag("span", class_="bar", style=f"width:{100 * value:.0f}%", aria_hidden="true"))


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
            lines.append(_series(f"by {words}", "line", (1 - kept[some]).flip(0), accuracy[some].flip(0)))
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
        ends = between(int(right.sum()), len(right))
        spans.append((*_series("", "line", [said] * 2, ends), 0))  # in the first colour
        cells = f"{10 * i} to {10 * i + 10} %", f"{len(right):,}", percent(said)
        rows.append([*cells, share(int(right.sum()), len(right))])
    found = _series("found, with 95 % interval", "dots", *zip(*points, strict=True))
    honest = _series("honest", "dashed", [0, 1], [0, 1])
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
        lines.append(_series(f"by {BY[name]}", "line", removed[some], rest[some]))
        try:
            agreement = f"{metrics.rank_correlation(by, error):.2f}"
        except ValueError:  # one of them has a single value
            agreement = "none"
        rows.append([BY[name], agreement, f"{metrics.ause(uncertainty=by, error=error):.3f}"])
    lines.append(_series("best possible", "dashed", *metrics.sparsification_oracle(error)))
    charts["rejection"] = {"series": lines}
    main = "expected" if "expected" in names else "epistemic"
    by = scored[f"by {main}"].double()
    picked = _evenly(len(by))
    low, high = (by.sort().values[round(q * (len(by) - 1))] for q in (0.005, 0.995))  # a few would stretch the axis
    picked = picked[(by[picked] >= low) & (by[picked] <= high)]
    charts["errors"] = {"series": [_series("", "dots", by[picked], error[picked])]}
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


def p_values(scored: Scored, n: int, what: str, charts: dict[str, Any]) -> Block:
    """p-values in the order of the loader, and how evenly they spread."""
    if "p_value" not in scored:
        return "There are no p-values: the detector was not calibrated."
    p, some = scored["p_value"].double(), _evenly(scored.count)
    charts["strip"] = {"series": [_series("", "dots", some, p[some])]}
    edges = torch.linspace(0, 1, 21, dtype=torch.float64, device="cpu")
    found = _series("found", "steps", edges, torch.histogram(p, edges).hist / len(p))
    charts["p"] = {"series": [found, _series("even", "dashed", [0, 1], [0.05, 0.05])]}
    ordered, rank = p.sort().values, torch.arange(len(p) + 1, dtype=torch.float64, device="cpu") / len(p)
    gap = float(torch.maximum(rank[1:] - ordered, ordered - rank[:-1]).max())
    usual = 1.358 * math.sqrt(1 / len(p) + 1 / n)
    verdict = "these are as even as chance allows" if gap <= usual else f"these {what} differ from the calibration data"
    return {"gap": percent(gap), "usual": percent(usual), "verdict": verdict}
