"""The study `depth-estimation` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...markdown import table

ACCURACY = {"RMSE (m)": "rmse", "relative error": "relative error", "δ < 1.25": "delta below 1.25"}
RANKS = {
    "aleatoric with error": "rank correlation of aleatoric with error",
    "epistemic with error": "rank correlation of epistemic with error",
    "AUSE aleatoric": "ause of aleatoric",
    "AUSE epistemic": "ause of epistemic",
    "RMSE of half, aleatoric": "rmse of the half with least aleatoric",
    "RMSE of half, epistemic": "rmse of the half with least epistemic",
    "rising steps, aleatoric": "share of steps that rise, aleatoric",
    "rising steps, epistemic": "share of steps that rise, epistemic",
}
FITTED = {
    "log p(z given y), nats": "held-out log p(z|y)",
    "log p(z), nats": "held-out log p(z)",
    "seconds to fit": "seconds to fit",
}
SHAPES = {"beta prime": "beta-prime", "Gaussian": "gaussian", "histogram": "histogram"}
PREDICTED = ("constant", "network", "mc-dropout", "ensemble")
COST = "milliseconds per megapixel"


def render(result: Mapping[str, Any]) -> str:
    """Accuracy, ranking of errors, unknown images, densities, distributions of depth, and the cost.

    Args:
        result: of the study, as its file has it.
    """
    found = {(row["ood"], row["method"], row["metric"]): row for row in result["rows"]}
    methods = list(dict.fromkeys(method for _, method, metric in found if metric == "auroc"))
    kinds = list(dict.fromkeys(ood for ood, _, metric in found if metric == "auroc"))
    accuracy = [[method, *_cells(found, method, ACCURACY.values())] for method in PREDICTED]
    ranked = [[method, *_cells(found, method, RANKS.values())] for method in methods]
    areas = [[method, *(_cell(found.get((kind, method, "auroc"))) for kind in kinds)] for method in methods]
    fitted = [
        [method, *_cells(found, method, FITTED.values(), digits=1)]
        for method in dict.fromkeys(method for _, method, metric in found if metric == FITTED["log p(z given y), nats"])
    ]
    shapes = [
        [name, what, *_cells(found, method, (f"kolmogorov distance to {what}", f"held-out log-likelihood of {what}"))]
        for what in ("predictions", "depths")
        for name, method in SHAPES.items()
    ]
    once = found[None, "network", COST]["mean"]
    costs = [
        [method, f"{row['mean']:,.1f}", f"{row['mean'] / once:,.1f}"]
        for (_, method, metric), row in found.items()
        if metric == COST
    ]
    return "\n\n".join(
        [
            table(["depth of", *ACCURACY], accuracy),
            table(["method", *RANKS], ranked),
            _monotone(found, methods),
            table(["AUROC of images", *(str(kind) for kind in kinds)], areas),
            table(["density", *FITTED], fitted),
            table(["distribution", "of", "Kolmogorov distance", "held-out log-likelihood (nats)"], shapes),
            _shape(found),
            table(["whole maps by", "milliseconds per megapixel", "forward passes"], costs),
        ]
    )


def _monotone(found: Mapping[Any, Mapping[str, Any]], methods: Sequence[str]) -> str:
    """Whether the paper's curve is monotone, as text."""
    shares = {m: found.get((None, m, "share of steps that rise, aleatoric")) for m in methods}
    known = {method: row["mean"] for method, row in shares.items() if row is not None}
    always = [method for method, share in known.items() if share == 1]
    rest = [f"{method} ({share:.0%} of the steps)" for method, share in known.items() if share < 1]
    text = []
    if always:
        text.append(f"The RMSE below a threshold of aleatoric uncertainty rises at every step for {', '.join(always)}.")
    if rest:
        text.append(f"It is not monotone for {', '.join(rest)}.")
    return " ".join(text)


def _shape(found: Mapping[Any, Mapping[str, Any]]) -> str:
    """The beta prime's numbers beside the paper's."""
    alpha, beta = (found[None, "beta-prime", f"{name} of predictions"] for name in ("alpha", "beta"))
    return (
        f"The beta prime of predictions has α = {alpha['mean']:.2f} and β = {beta['mean']:.2f}; the paper's, on KITTI, "
        f"{alpha['paper_mean']} and {beta['paper_mean']}."
    )


def _cells(found: Mapping[Any, Mapping[str, Any]], method: str, metrics: Any, digits: int = 3) -> list[str]:
    return [_cell(found.get((None, method, metric)), digits) for metric in metrics]


def _cell(row: Mapping[str, Any] | None, digits: int = 3) -> str:
    """A single repetition has no deviation."""
    if row is None:
        return ""
    return f"{row['mean']:.{digits}f}" + (f" ± {row['std']:.{digits}f}" if row["n"] > 1 else "")
