"""The default beside single methods: the peers' formulas, the rows, and every family on small drawn data."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hidden_uncertainty import GaussianMixture
from reproduction.__main__ import app
from reproduction.render import render
from reproduction.studies.one_score import families, measure, methods, peers, study
from reproduction.studies.one_score.rows import build_rows


def test_vim_is_as_its_authors_wrote_it() -> None:
    random = np.random.default_rng(0)
    z, more = random.normal(size=(80, 6)) * [3, 2, 1, 1, 0.5, 0.1], random.normal(size=(9, 6))
    weight, bias = random.normal(size=(4, 6)), random.normal(size=4)
    u = -np.linalg.pinv(weight) @ bias  # their names
    values, vectors = np.linalg.eig((z - u).T @ (z - u) / 80)
    null = vectors[:, np.argsort(-values)[3:]]
    alpha = (z @ weight.T + bias).max(1).mean() / np.linalg.norm((z - u) @ null, axis=1).mean()
    logits = more @ weight.T + bias
    expected = alpha * np.linalg.norm((more - u) @ null, axis=1) - np.log(np.exp(logits).sum(1))
    head = (torch.tensor(weight), torch.tensor(bias))
    vim = peers.ViM.fit(torch.tensor(z), torch.tensor(z @ weight.T + bias), head)
    np.testing.assert_allclose(vim(torch.tensor(more), torch.tensor(logits)), expected)


def test_fdbd_is_the_distance_to_each_boundary() -> None:
    random = np.random.default_rng(0)
    z, weight, bias, mean = random.normal(size=(7, 5)), random.normal(size=(4, 5)), random.normal(size=4), np.ones(5)
    expected = []
    for row in z:
        logits = weight @ row + bias
        best = logits.argmax()
        far = []
        for c in set(range(4)) - {best}:
            normal, offset = weight[best] - weight[c], bias[best] - bias[c]
            foot = row - (normal @ row + offset) / (normal @ normal) * normal  # on the boundary
            far.append(np.linalg.norm(row - foot))
        expected.append(-np.mean(far) / np.linalg.norm(row - mean))
    parts = (torch.tensor(part) for part in (z, z @ weight.T + bias))
    found = peers.fdbd(*parts, (torch.tensor(weight), torch.tensor(bias)), torch.tensor(mean))
    np.testing.assert_allclose(found, expected)


def test_the_wide_range_is_that_of_thresholds_from_data() -> None:
    asked, known, calibrated = 0.05, 300, 199
    limits = measure.ranges(asked, known, calibrated)
    scores = torch.rand(5000, known + calibrated, generator=torch.Generator().manual_seed(0))
    threshold = scores[:, :calibrated].sort(1, descending=True).values[:, 9]  # of 200, 5 % are above the tenth highest
    shares = (scores[:, calibrated:] > threshold[:, None]).double().mean(1)
    within = ((shares >= limits["wide_low"]) & (shares <= limits["wide_high"])).double().mean()
    assert 0.945 < within < 0.97  # shares are multiples of 1/300
    assert limits["wide_low"] < limits["low"] < asked < limits["high"] < limits["wide_high"]


def record(seed: int, default: float, softmax: float, layer: float) -> dict[str, Any]:
    others = {"default's head layer": 0.5, "GEN": 0.6}
    return {
        "seed": seed,
        "commit": "0123456789abcdef",
        "accuracy": 0.9,
        "auroc": {"digits 8-9": {"default": default, "softmax": softmax, "a layer": layer, **others}},
        "mistakes": {"default's aleatoric": 0.8, "softmax entropy": 0.7} if seed else {},
        "false alarms": {"0.01": 0.02, "0.05": 0.04},
        "known": 100,
        "calibrated on": 99,
        "weights": {"conv": 0.5, "outputs": 1.0},
    }


def test_rows_choose_the_best_of_each_network_in_hindsight() -> None:
    networks = {"digits": [record(0, 0.90, 0.95, 0.80), record(1, 0.90, 0.80, 0.92)]}
    rows = {(row["method"], row["metric"], row["ood"]): row for row in build_rows(networks)}
    assert rows["default", "regret", "digits 8-9"]["mean"] == 3.5  # 5 and 2
    assert rows["default", "regret", "digits 8-9"]["best"] == "softmax"  # of the two, the better on average
    assert rows["default", "below softmax", "digits 8-9"]["mean"] == -2.5
    assert rows["default", "mean regret", None]["mean"] == rows["default", "highest regret", None]["mean"] == 3.5
    assert rows["a layer", "mean regret", None]["mean"] == 7.5  # 15 and 0
    assert rows["softmax", "regret", "digits 8-9"]["mean"] == 6  # 0 and 12
    assert rows["default", "highest below softmax", None]["mean"] == -2.5
    assert rows["default", "mean auroc", None]["n"] == 1 and rows["default", "auroc", "digits 8-9"]["n"] == 2
    alarms = rows["default", "false alarms at 1%", None]
    assert alarms["mean"] == 0.02 and alarms["low"] == 0 and alarms["high"] == 0.03
    assert rows["default's aleatoric", "auroc of mistakes", None]["mean"] == 0.8
    assert all(row["split"] == "development" and row["variant"] == "default" for row in rows.values())
    assert {"train", "ood", "method", "metric", "mean", "std", "n"} <= set.intersection(*map(set, rows.values()))


def shown(networks: dict[str, list[dict[str, Any]]]) -> str:
    """The tables of networks of some families."""
    known = {name: vars(family) for name, family in families.FAMILIES.items()}
    missing = [name for name in families.FAMILIES if name not in networks]
    result = {"settings": {"networks": networks, "families": known, "not run": missing}, "rows": build_rows(networks)}
    return render({**result, "name": "one-score", "command": "a", "seconds": 1, "hardware": "b"})


def test_the_page_counts_alarms_and_names_sets_of_high_regret() -> None:
    text = shown({"digits": [record(0, 0.90, 0.95, 0.80), record(1, 0.90, 0.80, 0.99)]})
    assert "2.0 %, 2.0 % (0.0 % – 3.0 %)" in text and "4.0 %, 4.0 % (1.0 % – 10.0 %)" in text
    assert "4 of 4 shares lie there" in text and "the default is 2.5 points above softmax" in text
    assert "Regret above 4 points: digits 0-7 → digits 8-9 (default's head layer 0.500, outputs by GEN 0.600)." in text
    text = shown({"digits": [record(0, 0.90, 0.91, 0.80) | {"false alarms": {"0.01": 0.09, "0.05": 0.11}}]})
    assert "0 of 2 shares lie there" in text and "1 of 2 lie in the wider one" in text
    assert "Regret above" not in text and "the default is 1.0 points below softmax" in text


def test_families_are_asked_for_by_name() -> None:
    every = families.choose(None, gpu=True)[0]
    assert every and all(families.FAMILIES[name].split == "development" for name in every)  # test is run by name only
    assert {family.split for family in families.FAMILIES.values()} == {"development", "test"}
    with pytest.raises(ValueError, match=r"there is no family 'nothing'; there are: digits, "):
        families.choose(["nothing"], gpu=True)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtures that take two steps, and alarms that few data can tell."""
    monkeypatch.setattr(methods, "GaussianMixture", lambda **o: GaussianMixture(components=1, max_iter=2))
    monkeypatch.setattr(measure, "ASKED", (0.1, 0.2))


def draw_hundred(folder: Path, random: np.random.Generator) -> None:
    """CIFAR100 with 150 images of ten of its classes for training and 60 for tests."""
    (folder / "cifar-100-python").mkdir()
    for name, count in (("train", 150), ("test", 60)):
        labels = np.arange(count) % 10
        pixels = random.integers(0, 60, (count, 3, 32, 32))
        for image, label in zip(pixels, labels, strict=True):
            image[:, :, 3 * label : 3 * label + 3] += 150
        entries = {b"data": pixels.astype(np.uint8).reshape(count, 3072), b"fine_labels": (9 * labels).tolist()}
        (folder / "cifar-100-python" / name).write_bytes(pickle.dumps(entries, protocol=2))


def draw_queries(folder: Path, random: np.random.Generator) -> None:
    """CLINC150 with three intents of five words each, and queries of other words."""
    (folder / "clinc150").mkdir()

    def some(count: int, kinds: int, first: int = 0) -> list[list[str]]:
        pairs = []
        for i in range(count):
            kind = first + i % kinds
            words = [f"word{5 * kind + random.integers(5)}" for _ in range(random.integers(3, 9))]
            pairs.append([" ".join(words), f"intent{kind}" if first == 0 else "oos"])
        return pairs

    sizes = {"train": (300, 3), "val": (3, 3), "test": (120, 3)}
    outside = {"oos_train": (1, 1, 9), "oos_val": (1, 1, 9), "oos_test": (30, 1, 9)}
    queries = {part: some(*size) for part, size in (sizes | outside).items()}
    (folder / "clinc150" / "data_full.json").write_text(json.dumps(queries))


NEAR = {"CIFAR100", "SVHN", "MNIST"}
GREY = {"rotated", "hflip", "vflip", "OMNIGLOT", "noise"}
CASES = {
    "digits": {"digits 8-9"},
    "fcnet-mnist": {"FashionMNIST", *GREY},
    "fcnet-fashionmnist": {"MNIST", *GREY},
    "resnet-svhn": {"CIFAR10", "STL10", *GREY} - {"OMNIGLOT"},
    "resnet-cifar10": {"SVHN", "STL10", *GREY} - {"OMNIGLOT"},
    "resnet18-cifar10": NEAR,
    "resnet18-cifar100": {"CIFAR10", "SVHN", "MNIST"},
    "vit-cifar10": NEAR,
    "text-clinc150": {"out of scope"},
}


def test_every_family_is_tried() -> None:
    assert set(CASES) == set(families.FAMILIES)


@pytest.mark.parametrize("family", CASES)
def test_the_rough_version_of_each_family(
    family: str, grey_data: Path, colour_data: Path, hasty: None, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    draw_hundred(tmp_path, random)
    draw_queries(tmp_path, random)
    found = study.run(families=[family], quick=True, folder=tmp_path / "work")
    areas = {(row["ood"], row["method"]): row for row in found.rows if row["metric"] == "auroc"}
    assert {ood for ood, _ in areas} == CASES[family] and all(0 <= row["mean"] <= 1 for row in areas.values())
    single = {*methods.OUTPUTS, *methods.FEATURES, "Mahalanobis, unit length", "ViM", "fDBD", "default's head layer"}
    assert {"default", *single} < {method for _, method in areas}
    assert {row["split"] for row in found.rows} == {families.FAMILIES[family].split}
    (own,) = found.settings["networks"][family]
    assert "read by the layer that gives the network's output" in own["layers"][-1]
    kept = sorted((tmp_path / "work").glob("*"))
    assert len(kept) == (family != "digits")  # which is trained in a second
    text = render({**vars(found), "command": "a", "hardware": "b"})
    assert "| **default** |" in text and all(f" → {ood} |" in text for ood in CASES[family])
    if family in ("fcnet-mnist", "text-clinc150"):  # networks are found
        again = study.run(families=[family], quick=True, folder=tmp_path / "work")
        assert again.rows == found.rows and sorted((tmp_path / "work").glob("*")) == kept


def test_without_a_gpu_some_are_left_out(
    monkeypatch: pytest.MonkeyPatch, hasty: None, capture_notes: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no family is left to run: resnet-svhn, vit-cifar10 need a GPU"):
        study.run(families=["resnet-svhn", "vit-cifar10"])
    assert capture_notes == [
        "left out, because their networks are trained on a GPU and there is none: resnet-svhn, vit-cifar10."
    ]


def test_other_families_of_an_earlier_result_are_kept(
    monkeypatch: pytest.MonkeyPatch, hasty: None, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    family = families.FAMILIES["digits"]
    rough = replace(family, find=lambda seeds, setup: family.find(seeds, replace(setup, quick=True)))
    monkeypatch.setitem(families.FAMILIES, "digits", rough)
    mnist = record(0, 0.9, 0.8, 0.7)
    path = tmp_path / "one-score.json"
    settings = {"networks": {"fcnet-mnist": [mnist]}, "seconds": {"fcnet-mnist": 1000.0}}
    path.write_text(json.dumps({"settings": settings, "data": {"MNIST": "a digest"}}))
    called = CliRunner().invoke(
        app, ["one-score", "--families", "digits,resnet-svhn", "--seeds", "1", "--out", str(tmp_path)]
    )
    assert called.exit_code == 0, called.output
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["command"] == "python -m reproduction one-score --seeds 1 --families digits,resnet-svhn"
    assert list(result["settings"]["networks"]) == ["digits", "fcnet-mnist"]
    assert result["settings"]["networks"]["fcnet-mnist"] == [mnist] and set(result["data"]) == {"MNIST", "digits"}
    assert result["seconds"] > 1000 and "resnet-svhn" in result["settings"]["not run"]
    accuracies = {row["train"]: row["mean"] for row in result["rows"] if row["metric"] == "accuracy"}
    assert accuracies["MNIST"] == 0.9 and accuracies["digits 0-7"] > 0.5
    text = render(result)
    assert "Not run yet, of the test split: resnet18-cifar100, vit-cifar10, text-clinc150." in text
    assert "| digits 0-7 → digits 8-9 |" in text and "| fcnet-mnist | MNIST |" in text


def test_test_families_name_the_commit_that_they_were_run_at() -> None:
    text = shown({"text-clinc150": [record(0, 0.9, 0.8, 0.7)]})
    assert "The test families text-clinc150 were run at commit 0123456789." in text
    assert "of the test split: resnet18-cifar100, vit-cifar10.**" in text


@pytest.fixture
def capture_notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []
    monkeypatch.setattr(study, "note", notes.append)
    return notes
