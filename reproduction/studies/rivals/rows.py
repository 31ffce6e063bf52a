"""From records of single networks to rows of a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ...results import summarise
from ..table_1.paper import FCNET

Record = Mapping[str, Any]
Row = dict[str, Any]
NEAR = ("rank correlation", "raulc")
PUBLISHED = {  # what the authors report, where it can be compared
    ("DUQ CNN", "DUQ", "auroc MNIST"): (0.955, 0.007),
    ("DUQ CNN", "DUQ", "accuracy"): (0.924, 0.002),
    ("VIB", "VIB", "accuracy"): (0.9887, None),
}
PAPER = {"latent density, layer 1": "layer-1", "latent density, layer 10": "layer-10"}


def build_rows(records: Sequence[Record]) -> list[Row]:
    """Rows of every set, rival and detector.

    Args:
        records: of all networks.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for each in records:
        groups.setdefault((each["train"], each["rival"]), []).append(each)
    return [row for (train, rival), own in groups.items() for row in _rival(train, rival, own)]


def _rival(train: str, rival: str, own: Sequence[Record]) -> Iterator[Row]:
    def row(values: Sequence[float], ood: str | None, method: str, metric: str) -> Row:
        paper = FCNET.get((train, ood or "", PAPER.get(method, ""))) if metric == "auroc" else None
        found = summarise(values, train=train, ood=ood, method=method, metric=metric)
        published = {"paper_mean": paper and paper.mean, "paper_std": paper and paper.std}
        return {**found, **published, "rival": rival, "variant": "default"}

    for metric in ("accuracy", "held accuracy", "training seconds"):
        yield row([each[metric] for each in own], None, rival, metric)
    for method, first in own[0]["scores"].items():
        scores = [each["scores"][method] for each in own]
        for ood in first["auroc"]:
            yield row([each["auroc"][ood] for each in scores], ood, method, "auroc")
        yield row([fmean(each["auroc"].values()) for each in scores], None, method, "mean auroc")
        for metric in ("fit seconds", "passes"):
            yield row([each[metric] for each in scores], None, method, metric)
        mistakes = [each["mistakes"] for each in scores if each["mistakes"] is not None]
        if mistakes:
            yield row(mistakes, None, method, "auroc of mistakes")
        for kind in own[0]["near"]:
            for metric in NEAR:
                values = [each["near"][kind][metric].get(method) for each in own]
                if None not in values:
                    yield row(values, kind, method, metric)
            steps = [fmean(each["near"][kind]["auroc"][method]) for each in own]
            yield row(steps, kind, method, "mean auroc over steps")


def build_sanity(records: Sequence[Record]) -> list[Row]:
    """Rows of the published results; their set is the name of the check."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for each in records:
        for method, values in each["results"].items():
            for metric, value in values.items():
                groups.setdefault((each["check"], method, metric), []).append(value)
    rows = []
    for (check, method, metric), values in groups.items():
        mean, std = PUBLISHED.get((check, method, metric), (None, None))
        found = summarise(values, train=check, ood=None, method=method, metric=metric)
        rows.append({**found, "paper_mean": mean, "paper_std": std, "rival": None, "variant": "published result"})
    return rows
