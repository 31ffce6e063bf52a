"""Published numbers beside ours."""

from __future__ import annotations

from reproduction.studies.one_score.page.published import METHODS, beside


def test_baselines_stand_beside_published_numbers() -> None:
    about = {"train": "CIFAR100, ResNet-18", "metric": "auroc", "std": 0.01, "n": 3}
    rows = [
        {**about, "ood": ood, "method": method, "mean": 0.5}
        for ood in ("CIFAR10", "SVHN", "MNIST")
        for method in METHODS
    ]
    text = beside(rows)
    assert "| softmax | 0.500 ± 0.010 | 0.785 | 0.500 ± 0.010 | 0.784 | 0.500 ± 0.010 | 0.761 |" in text
    assert "| CIFAR100, ResNet-18 | CIFAR10 | published | SVHN | published | MNIST | published |" in text
    assert beside([{**row, "train": "MNIST"} for row in rows]) == ""
