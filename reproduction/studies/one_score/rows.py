"""From the numbers of single networks to rows of a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ...results import summarise
from . import probabilities
from .families import FAMILIES
from .measure import below, ranges, regret
from .methods import DEFAULT

Record = Mapping[str, Any]  # what `measure` found for one network
Row = dict[str, Any]
VARIANT = "default"
NEAR = ("rank correlation", "raulc")
BEFORE = (  # commits with an earlier default
    *("9015fb1b87", "9793365d1e", "0ed20abd1b", "25706ea4db"),  # that had another rule
    "2c3df93729",  # that read means of maps and tokens alone
)


def earlier(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some networks of a family were measured with an earlier default."""
    return any(str(record["commit"]).startswith(BEFORE) for record in records)


def build_rows(networks: Mapping[str, Sequence[Record]]) -> list[Row]:
    """All rows: of each unknown set, of each family, and over all sets of a split.

    Args:
        networks: numbers of each family's networks.
    """
    rows = [row for family, records in networks.items() for row in _family(family, records)]
    splits = dict.fromkeys(row["split"] for row in rows)
    return rows + [row for split in splits for row in _summary([each for each in rows if each["split"] == split])]


def _family(family: str, records: Sequence[Record]) -> Iterable[Row]:
    known = FAMILIES[family]

    def row(values: Sequence[float], ood: str | None, method: str, metric: str, **more: Any) -> Row:
        found = summarise(values, train=known.train, ood=ood, method=method, metric=metric)
        return {**found, "split": known.split, "variant": VARIANT, **more}

    yield row([record["accuracy"] for record in records], None, "network", "accuracy")
    for ood, methods in records[0]["auroc"].items():
        areas = [record["auroc"][ood] for record in records]
        each = [row([one[method] for one in areas], ood, method, "auroc") for method in methods]
        yield from each
        best = max((one for one in each if one["method"] != DEFAULT), key=lambda one: one["mean"])["method"]
        for method in methods:
            yield row([regret(one, method) for one in areas], ood, method, "regret", best=best)
        yield row([below(one) for one in areas], ood, DEFAULT, "below softmax")
        for name in () if earlier(records) else records[0]["variants"].get(ood, ()):  # variants of another rule
            moved = [
                {**one, DEFAULT: record["variants"][ood][name]} for one, record in zip(areas, records, strict=True)
            ]
            yield row([one[DEFAULT] for one in moved], ood, name, "auroc of variant")
            yield row([regret(one) for one in moved], ood, name, "regret of variant")
            yield row([below(one) for one in moved], ood, name, "below softmax of variant")
    for asked in map(float, records[0]["false alarms"]):
        sizes = (round(fmean(record[name] for record in records)) for name in ("known", "calibrated on"))
        limits = {name: round(value, 4) for name, value in ranges(asked, *sizes).items()}
        shares = [record["false alarms"][str(asked)] for record in records]
        yield row(shares, None, DEFAULT, f"false alarms at {asked:.0%}", **limits)
    for method in dict.fromkeys(name for record in records for name in record["mistakes"]):
        found = [record["mistakes"][method] for record in records if method in record["mistakes"]]
        yield row(found, None, method, "auroc of mistakes")
    for measure in probabilities.MEASURES:
        found = [record["probabilities"][measure] for record in records]
        for method in (probabilities.DEFAULT, probabilities.PLAIN, probabilities.SCALED):
            yield row([each[method] for each in found], None, method, measure)
        inside = sum(map(probabilities.within, found))
        ends = {end: round(fmean(each[end] for each in found), 4) for end in ("low", "high")}
        yield row(
            [each["default"] - each[probabilities.SCALED] for each in found],
            None,
            DEFAULT,
            f"{measure} above scaled softmax",
            within=inside,
            **ends,
        )
    for kind, curves in records[0]["near"].items():
        for metric in NEAR:
            for method in curves["auroc"]:
                values = [each for record in records if (each := record["near"][kind][metric].get(method)) is not None]
                if values:
                    yield row(values, kind, method, f"{metric} with accuracy" if metric == NEAR[0] else metric)
    for layer in records[0]["weights"]:
        yield row([record["weights"][layer] for record in records], None, DEFAULT, f"weight of {layer}")


def _summary(rows: Sequence[Row]) -> Iterable[Row]:
    """Over all unknown sets of a split: what each method reaches, and what is lost by taking it alone."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["metric"].removesuffix(" of variant") in ("auroc", "regret", "below softmax"):
            found.setdefault((row["method"], row["metric"]), []).append(row["mean"])
    sets = len(found[DEFAULT, "auroc"])
    about: Row = {"train": None, "ood": None}
    tail = {"split": rows[0]["split"], "variant": VARIANT}
    for (method, metric), values in found.items():
        if len(values) == sets:  # of networks with fewer layers, some methods have fewer
            if not metric.startswith("below softmax"):
                yield {**summarise(values, **about, method=method, metric=f"mean {metric}"), **tail}
            if not metric.startswith("auroc"):
                most = {"mean": round(max(values), 4), "std": 0.0, "n": sets}
                yield {**about, "method": method, "metric": f"highest {metric}", **most, **tail}
