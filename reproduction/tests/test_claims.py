"""The page of claims: what is committed, verdicts that follow the numbers, and files that are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reproduction.claims import base, images
from reproduction.claims import page as claims

ROOT = Path(__file__).parents[2]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> base.Results:
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows}))
    return base.Results(folder)


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    assert claims.page(ROOT / "results").replace(str(ROOT) + "/", "") == (ROOT / "results/claims.md").read_text()


@pytest.mark.parametrize(("deep", "holds"), [(0.7, True), (0.85, False), (0.95, False)])
def test_a_verdict_follows_the_numbers(tmp_path: Path, deep: float, holds: bool) -> None:
    rows = [
        {"train": train, "ood": shift, "method": method, "metric": "mean auroc over steps", "mean": mean, "std": 0.05}
        for train, shift, deepest in (("MNIST", "rotation", "layer-10"), ("SVHN", "noise", "layer-34"))
        for method, mean in (("layer-1", 0.9), (deepest, deep))
    ]
    assert [finding.holds for finding in images._quicker(write(tmp_path, "layer-depth", rows))] == [holds] * 2


def test_only_the_default_reading_counts_and_a_row_must_be_there_once(tmp_path: Path) -> None:
    row = {"method": "flow", "metric": "auroc", "mean": 0.9}
    mixture = [
        {**row, "method": "mixture-paper", "mean": mean, "variant": name}
        for mean, name in ((0.5, "other"), (1, "default"))
    ]
    results = write(tmp_path, "digits", [row, *mixture])
    (finding,) = images._sufficient(results)
    assert finding.holds and "1.000" in finding.numbers
    with pytest.raises(ValueError, match=r"expected one row of 'digits'.*found 0"):
        results.mean("digits", method="flow", metric="accuracy")


def test_what_was_not_measured_is_said_to_be(tmp_path: Path) -> None:
    page = claims.page(tmp_path)
    assert page.count("not measured yet") == len(claims.CLAIMS) and "python -m reproduction layer-depth" in page
