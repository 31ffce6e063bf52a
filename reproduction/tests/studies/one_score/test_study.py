"""The default beside single methods: the rows, and every family on small drawn data."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce
from hidden_uncertainty.latent import POOLING
from reproduction.__main__ import app
from reproduction.nets import public
from reproduction.render import render
from reproduction.studies.one_score import (
    families,
    measure,
    methods,
    probabilities,
    study,
    variants,
)
from reproduction.studies.one_score.page import short
from reproduction.studies.one_score.rows import build_rows

NEAR_METHODS = ("default", "softmax", "paper's mixture, layer 1 of 2", "paper's mixture, layer 2 of 2")


def record(seed: int, default: float, softmax: float, layer: float) -> dict[str, Any]:
    others = dict.fromkeys(("default's head layer", "energy", *NEAR_METHODS[2:], *list(short.SHOWN)[3:]), 0.5)
    others["GEN"] = 0.6
    return {
        "seed": seed,
        "commit": "0123456789abcdef",
        "accuracy": 0.9,
        "auroc": {"digits 8-9": {"default": default, "softmax": softmax, "a layer": layer, **others}},
        "variants": {"digits 8-9": {"equal weights": default - 0.01}},
        "mistakes": {"default's aleatoric": 0.8, "softmax entropy": 0.7} if seed else {},
        "probabilities": {
            "nll": {"default": 0.3, "softmax": 0.4, "scaled softmax": 0.2, "low": 0.1, "high": 0.3 - 0.1 * seed},
            "ece": {"default": 0.01, "softmax": 0.04, "scaled softmax": 0.02, "low": 0.015, "high": 0.03},
        },
        "near": {
            "rotation": {
                "steps": [0, 20],
                "accuracy": [0.9, 0.5],
                "auroc": {name: [0.7] for name in NEAR_METHODS},
                "rank correlation": dict(zip(NEAR_METHODS, (-0.9, -0.5, -1.0, -0.8), strict=True)),
                "raulc": dict(zip(NEAR_METHODS, (0.6, 0.5, 0.3, 0.4), strict=True)),
            }
        },
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
    assert rows["equal weights", "mean regret of variant", None]["mean"] == 4.5  # 6 and 3
    assert rows["equal weights", "highest below softmax of variant", None]["mean"] == -1.5
    assert rows["default", "nll above scaled softmax", None]["within"] == 1
    assert rows["default", "ece above scaled softmax", None]["within"] == 2
    assert rows["default", "rank correlation with accuracy", "rotation"]["mean"] == -0.9
    assert all(row["split"] == "development" and row["variant"] == "default" for row in rows.values())
    assert {"train", "ood", "method", "metric", "mean", "std", "n"} <= set.intersection(*map(set, rows.values()))


def shown(networks: dict[str, list[dict[str, Any]]], part: str | None = None) -> str:
    """The tables of networks of some families."""
    known = {name: vars(family) for name, family in families.FAMILIES.items()}
    missing = [name for name in families.FAMILIES if name not in networks]
    settings = {"networks": networks, "families": known, "not run": missing, "seconds": dict.fromkeys(networks, 1.0)}
    result = {"settings": settings, "rows": build_rows(networks)}
    return render({**result, "name": "one-score", "command": "a", "seconds": 1, "hardware": "b"}, part)


def test_the_page_counts_alarms_and_names_sets_of_high_regret() -> None:
    text = shown({"digits": [record(0, 0.90, 0.95, 0.80), record(1, 0.90, 0.80, 0.99)]})
    assert "2.0 %, 2.0 % (0.0 % – 3.0 %)" in text and "4.0 %, 4.0 % (1.0 % – 10.0 %)" in text
    assert "4 of 4 shares lie there" in text and "the default is 2.5 points above softmax" in text
    assert "Regret above 4 points: digits 0-7 → digits 8-9 (default's head layer 0.500, outputs by GEN 0.600" in text
    assert (
        "least regret there of what else was tried: equal weights, 8.0 points; its mean over all sets is 8.00, not"
        in text
    )
    assert "| equal weights | 0.890 | 8.00 | 8.0 | -1.5 |" in text
    assert "| 0.300 ± 0.000 | 0.200 ± 0.000 | 0.400 ± 0.000 | 1 of 2 |" in text
    assert "| digits | rotation | -0.900 ± 0.000 | -1.000 ± 0.000 (layer 1 of 2) | -0.500 ± 0.000 |" in text
    assert "| 0.600 ± 0.000 | 0.400 ± 0.000 (layer 2 of 2) |" in text
    assert "| AUROC, default | 0.500 | 0.700 |" in text
    for line in (
        "| mean regret at most 2 points | **no**: 7.0 |",
        "| mean AUROC above that of every single method with one setting | yes: 0.900, a layer 0.895 |",
        "| no set more than 1 point below softmax | yes: 2.5 points above on the worst set |",
        "| mistakes: AUROC of aleatoric at least that of softmax entropy minus 0.005 | yes: 1 of 1 networks |",
        "| NLL within the interval of temperature scaling, or better | **no**: 1 of 2 networks |",
        "| ECE within the interval of temperature scaling, or better | yes: 2 of 2 networks |",
        "in their binomial range, but for as many as chance puts outside | yes: 4 of 4 shares |",
        "at its best layer | **no**: 0 of 1 changes |",
        "| near the data, rAULC as good as that | yes: 1 of 1 changes |",
    ):
        assert line in text
    text = shown({"digits": [record(0, 0.90, 0.91, 0.80) | {"false alarms": {"0.01": 0.09, "0.05": 0.11}}]})
    assert "| the same, counting that thresholds are estimated | yes: 1 of 2 shares |" in text  # one may be outside
    assert "but for as many as chance puts outside | **no**: 0 of 2 shares |" in text
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
    monkeypatch.setattr(probabilities, "REPEATS", 20)


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


def striped() -> torch.Tensor:
    """Dark images with a bright stripe, about as `draw_hundred` has them."""
    images = torch.rand(60, 3, 32, 32) * 60 / 255
    for i, image in enumerate(images):
        image[:, :, 3 * (i % 10) : 3 * (i % 10) + 3] += 150 / 255
    return images


def draw_weights(folder: Path) -> dict[str, list[public.Published]]:
    """A small network in the place of each published one, stored as that is."""
    drawn = {}
    for source, (first, *_) in public.FILES.items():
        torch.manual_seed(0)
        build = partial(first.build.func, 8)
        network = build().eval()
        *_, bias = network.parameters()
        with torch.no_grad():
            bias -= network(striped()).mean(0)  # else it tells the same class of all images
        own = {name: value for name, value in network.state_dict().items() if "standardise" not in name}
        several = {f"module.{name}": value for name, value in own.items()}
        stored = {
            "pytorch_resnet_cifar10": {"state_dict": several, "best_prec1": 0.0},
            "distiller": {"model_state_dict": several, "epoch": 1},
        }
        path = folder / first.folder / first.file
        path.parent.mkdir()
        torch.save(stored.get(first.folder, own), path)
        drawn[source] = [first._replace(digest=sha256(path.read_bytes()).hexdigest()[:8], build=build)]
    return drawn


NEAR = {"CIFAR100", "SVHN", "MNIST"}
GREY = {"rotated", "hflip", "vflip", "OMNIGLOT", "noise"}
CASES = {
    "digits": {"digits 8-9"},
    "fcnet-mnist": {"FashionMNIST", *GREY},
    "fcnet-fashionmnist": {"MNIST", *GREY},
    "resnet-svhn": {"CIFAR10", "STL10", *GREY} - {"OMNIGLOT"},
    "resnet-cifar10": {"SVHN", "STL10", *GREY} - {"OMNIGLOT"},
    "resnet18-cifar10": NEAR,
    "public-cifar10": NEAR,
    "early-norm-cifar100": {"CIFAR10", "SVHN", "MNIST"},
    "narrow-cifar100": {"CIFAR10", "SVHN", "MNIST"},
    "public-cifar100": {"CIFAR10", "SVHN", "MNIST"},
    "resnet18-cifar100": {"CIFAR10", "SVHN", "MNIST"},
    "vit-cifar10": NEAR,
    "narrow-vit-cifar10": NEAR,
    "text-clinc150": {"out of scope"},
}


def test_every_family_is_tried() -> None:
    assert set(CASES) == set(families.FAMILIES)


@pytest.mark.parametrize("family", CASES)
def test_the_rough_version_of_each_family(
    family: str,
    grey_data: Path,
    colour_data: Path,
    hasty: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    monkeypatch.setattr(public, "FILES", draw_weights(tmp_path))
    draw_hundred(tmp_path, random)
    draw_queries(tmp_path, random)
    found = study.run(families=[family], quick=True, folder=tmp_path / "work")
    areas = {(row["ood"], row["method"]): row for row in found.rows if row["metric"] == "auroc"}
    assert {ood for ood, _ in areas} == CASES[family] and all(0 <= row["mean"] <= 1 for row in areas.values())
    single = {
        *methods.OF_OUTPUTS,
        *methods.OF_FEATURES,
        "Mahalanobis, unit length",
        "ViM",
        "fDBD",
        "default's head layer",
    }
    assert {"default", *single} < {method for _, method in areas}
    assert {row["split"] for row in found.rows} == {families.FAMILIES[family].split}
    (own,) = found.settings["networks"][family]
    assert [*own["near"]] == ([] if family == "text-clinc150" else ["rotation", "noise"])
    assert bool(own["variants"]) == (families.FAMILIES[family].split == "development")
    assert "read by the layer that gives the network's output" in own["layers"][-1]
    kept = sorted((tmp_path / "work").glob("*"))
    assert len(kept) == (family != "digits" and "published" not in families.FAMILIES[family].network)
    text = render({**vars(found), "command": "a", "hardware": "b"})
    assert "| **default** |" in text and all(f" → {ood} |" in text for ood in CASES[family])
    if family in ("fcnet-mnist", "text-clinc150"):  # networks are found
        again = study.run(families=[family], quick=True, folder=tmp_path / "work")
        assert again.rows == found.rows and sorted((tmp_path / "work").glob("*")) == kept


def test_weights_that_are_not_the_published_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    for (drawn,) in draw_weights(tmp_path).values():
        assert not public.load(drawn).training
        path = tmp_path / drawn.folder / drawn.file
        path.write_bytes(path.read_bytes() + b"0")
        with pytest.raises(ValueError, match="is not the published file: its sha256 starts with"):
            public.load(drawn)


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
    parts = tmp_path / "parts"
    parts.mkdir()
    of = {"text-clinc150": [mnist], "fcnet-mnist": [record(1, 0.5, 0.5, 0.5)]}  # another seed
    other = {"settings": {"networks": of, "seconds": dict.fromkeys(of, 5.0)}, "data": {}}
    (parts / "one-score.json").write_text(json.dumps(other))
    more = ["--families", "", "--earlier", str(path), "--out", str(parts)]
    assert CliRunner().invoke(app, ["one-score", *more]).exit_code == 0
    together = json.loads((parts / "one-score.json").read_text(encoding="utf-8"))["settings"]
    assert list(together["networks"]) == ["digits", "fcnet-mnist", "text-clinc150"]
    assert together["seconds"]["text-clinc150"] == 5.0 and together["seconds"]["fcnet-mnist"] == 1005.0
    assert [network["seed"] for network in together["networks"]["fcnet-mnist"]] == [0, 1]
    left = ", ".join(name for name, family in families.FAMILIES.items() if family.split == "test")
    assert f"Not run yet, of the test split: {left}." in text
    assert "| digits 0-7 → digits 8-9 |" in text and "| fcnet-mnist | MNIST |" in text


def test_short_tables_are_of_the_same_rows() -> None:
    digits = [record(0, 0.90, 0.95, 0.80), record(1, 0.90, 0.80, 0.99)]
    text = shown({"digits": digits, "text-clinc150": digits}, "short")
    # 0.95 and 0.99 were the best of each network
    assert "| digits 0-7 | development | 2 | 1 | **0.900** | 0.875 | 0.500 | 0.500 | 0.500 | 0.500 | 0.970 |" in text
    assert "| CLINC150 | **test** |" in text and "Not run yet: fcnet-mnist, " in text
    every = {name: digits for name, family in families.FAMILIES.items() if not family.gpu}
    assert "Not run yet, for want of a GPU: resnet-svhn, " in shown(every, "short")
    text = shown({"text-clinc150": digits}, "clinc150")
    assert text.index("**default**") < text.index("| softmax | 0.875") < text.index("| energy |")
    assert "accuracy 0.900 ± 0.000. False alarms of the default: 2.0 % at 1 %, 4.0 % at 5 %." in text
    assert "A test family, at commit 0123456789." in text
    assert "`python -m reproduction one-score --families text-clinc150` (1 s on b)" in text
    both = shown({"digits": digits, "text-clinc150": digits}, "short")
    assert "`python -m reproduction one-score --families digits,text-clinc150` (2 s on b)" in both
    assert shown({"digits": digits}, "clinc150").startswith("Not run yet: text-clinc150.")
    with pytest.raises(ValueError, match="the study 'one-score' has no table 'long'; it has: short, clinc150"):
        shown({"digits": digits}, "long")


def test_variants_start_from_the_default_itself(hasty: None) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 4, generator=random)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = ((4, 16), (16, 16), (16, 16), (16, 3))
        network = nn.Sequential(*(layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())))[:-1].eval()
    with torch.no_grad():
        labels = network(x).argmax(1)
    train, unseen, test = x[:800], (x[800:1300], labels[800:1300]), 2 * x[1300:]
    fitted, features = methods.fit(network, train, unseen, {"2": Reduce()}, 500)
    read = fitted.read(test)
    with torch.no_grad():
        torch.testing.assert_close(read.z["outputs"].float(), network(test))
    last = fitted.choices[-1].layer
    head = LatentDensity(None, methods.forms(last)[1], GaussianMixture(pooling=POOLING), progress=False)
    again = head.fit_features(features).predict_features(read)
    scores, u = fitted.score(test, read)
    torch.testing.assert_close(again.epistemic, u.layers[last].epistemic, rtol=1e-4, atol=1e-3)
    assert fitted.default.head is not None
    combination = fitted.default.head.combination
    tails, terms = combination.learnt, {name: part.epistemic for name, part in u.layers.items()}
    torch.testing.assert_close(variants.combined(tails, terms, far=combination.far).float(), u.epistemic)
    some = fitted.read(unseen[0])
    found = variants.fit(fitted, features, some, *fitted.score(unseen[0], some))(read, scores, u)
    rare = torch.stack([tails[name].rarity(part) for name, part in terms.items()])
    weights = torch.tensor([tails[name].weight for name in terms])[:, None]
    near, far = (weights * rare).sum(0), rare.sum(0)
    torch.testing.assert_close(found["nothing more where all terms are far"], near)
    torch.testing.assert_close(found["equal weights"], (far.exp() + (2 * (far - combination.far)).exp()).log())
    own = fitted.score(unseen[0], some)[1].layers
    known = torch.stack([tails[name].rarity(own[name].epistemic) for name in list(terms)[:-1]]).sum(0)
    beyond = 2 * (rare[:-1].sum(0) - known.quantile(0.9))
    torch.testing.assert_close(found["without the outputs"], ((weights * rare)[:-1].sum(0).exp() + beyond.exp()).log())
    assert all(len(each) == len(test) and bool(each.isfinite().all()) for each in found.values())


def test_test_families_name_the_commit_that_they_were_run_at() -> None:
    text = shown({"text-clinc150": [record(0, 0.9, 0.8, 0.7)]})
    assert "The test families text-clinc150 were run at commit 0123456789." in text
    assert "of the test split: resnet18-cifar100, vit-cifar10, narrow-vit-cifar10.**" in text


@pytest.fixture
def capture_notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []
    monkeypatch.setattr(study, "note", notes.append)
    return notes
