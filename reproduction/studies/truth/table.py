"""The study `truth` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import table

SCORES = ("epistemic", "aleatoric")
TOLERANCES = ("GaussianMixture(3, tol=1e-1)", "GaussianMixture(3)", "GaussianMixture(3, tol=1e-4)")
FLOORS = (
    "Errors are in nats. More data do not help without end. EM stops at `tol`. A `JointMixture` blurs by `noise` and "
    "takes p(y) from a marginal that is only an estimate, so it approaches a floor; less noise lowers it. A density "
    "that cannot be the truth (*no*) stays where it is."
)


def render(result: Mapping[str, Any]) -> str:
    """Errors by number of samples with their slopes, and what the tolerance of EM costs.

    Args:
        result: of the study, as its file has it.
    """
    rows = result["rows"]
    found = {(row["data"], row["method"], row.get("variant"), row["metric"], row.get("samples")): row for row in rows}
    sizes = sorted({row["samples"] for row in rows if "samples" in row})
    curves = [(row["data"], row["method"], row["variant"]) for row in rows if row["metric"] == "epistemic slope"]
    body = []
    for score in SCORES:
        for curve in curves:
            values = [f"{found[*curve, f'{score} error', n]['mean']:.4f}" for n in sizes]
            slope = found[*curve, f"{score} slope", None]
            body.append([score, *curve, *values, f"{slope['mean']:.2f} ± {slope['std']:.2f}"])
    head = ["error of", "joint distribution", "density", "well specified"]
    errors = table([*head, *(f"n = {n:,}" for n in sizes), "slope"], body)
    errors_of = {(row["data"], row["method"], row["metric"]): row for row in rows if row.get("samples") == sizes[-1]}
    body = [
        [data, method, *(_error(errors_of[data, method, f"{score} error"]) for score in SCORES)]
        for data in dict.fromkeys(data for data, method, _ in errors_of if method in TOLERANCES)
        for method in TOLERANCES
        if (data, method, "epistemic error") in errors_of
    ]
    tolerance = table([f"n = {sizes[-1]:,}", "density", *(f"{score} error" for score in SCORES)], body)
    level = ", ".join(f"{row['mean']:.2f} ({row['data']})" for row in rows if row["metric"] == "mean of h(y|z)")
    return f"{errors}\n\n{FLOORS}\n\n{tolerance}\n\nThe true h(y|z) is on average, in nats: {level}."


def _error(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.4f} ± {row['std']:.4f}"
