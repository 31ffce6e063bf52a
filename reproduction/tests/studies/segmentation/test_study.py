"""The segmentation study on small drawn streets, its scores and measures against plain computations, its claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from hidden_uncertainty import metrics
from reproduction.__main__ import app
from reproduction.claims import base as claims_base
from reproduction.claims import dense as claims_dense
from reproduction.datasets.dense import DenseFiles
from reproduction.nets.deeplab import DeepLab
from reproduction.nets.efficientnet import EfficientNetLite0
from reproduction.render import render
from reproduction.studies import dense_tools, load
from reproduction.studies.segmentation import study as segmentation
from reproduction.studies.segmentation.data import LARGE, Plan, read
from reproduction.studies.segmentation.measure import COST, Found, build_rows, find_mistakes, find_objects, thin
from reproduction.studies.segmentation.picture import Scene, draw_scenes
from reproduction.studies.segmentation.scores import LAYER, Maps, Methods
from reproduction.training.dense import DenseRecipe

TINY = Plan(
    size=(32, 64),
    recipe=DenseRecipe(epochs=8, batch_size=2, learning_rate=5e-3, flip=False),
    encoder=0.1,
    width=8,
    per_class=60,
    reservoir=2000,
    references=200,
    bits=14,
    repeats=1,
)
METHODS = {
    *("softmax-entropy", "mc-dropout", "mc-dropout-entropy", "epistemic", "aleatoric", "aleatoric-log"),
    *("mahalanobis", "neighbours"),
}


def street(random: np.random.Generator, height: int, width: int, strange: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sky above road, cars on it, a rim that nobody labelled; and a thing that is none of these."""
    labels = np.zeros((height, width), np.uint8)
    labels[: height // 2 + random.integers(-3, 4)] = 10
    left = random.integers(0, width // 2)
    labels[height // 2 : 3 * height // 4, left : left + width // 4] = 13
    colours = np.zeros((256, 3), int)
    colours[[0, 10, 13]] = [[90, 90, 90], [120, 160, 250], [200, 40, 40]]
    image = colours[labels] + random.integers(-25, 25, (height, width, 3))
    if strange:
        labels = np.zeros_like(labels)
        there = slice(-height // 4, -height // 8), slice(3 * width // 4, 7 * width // 8)
        labels[there], image[there] = 1, [0, 250, 0]
    labels[:2] = 255
    return image.clip(0, 255).astype(np.uint8), labels


@pytest.fixture
def streets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cityscapes and Lost & Found below a folder, which the environment names; everything in the study is tiny."""
    pictures = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 2), ("unknown", 3)):
        for i in range(count):
            unknown = part == "unknown"
            image, labels = street(random, *((64, 128) if unknown else (32, 64)), unknown)
            paths = [f"cityscapes/leftImg8bit/{part}/ulm/{i}_leftImg8bit.png"]
            paths += [f"cityscapes/gtFine/{part}/ulm/{i}_gtFine_labelTrainIds.png"]
            if unknown:
                paths = [f"fishyscapes_lostandfound/{kind}/{i:04}.png" for kind in ("images", "labels_masks")]
            for path, values in zip(paths, (image, labels), strict=True):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                pictures.fromarray(values).save(tmp_path / path)
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    monkeypatch.delenv("HIDDEN_UNCERTAINTY_WORK", raising=False)
    monkeypatch.setattr(segmentation, "QUICK", TINY)
    return tmp_path


def test_the_study_roughly(streets: Path, tmp_path: Path) -> None:
    study = load("segmentation")(quick=True, folder=tmp_path / "work")
    rows = {(row["ood"], row["method"], row["variant"], row["metric"]): row for row in study.rows}
    assert len(rows) == len(study.rows) and all(row["n"] == 1 and row["train"] == "Cityscapes" for row in study.rows)
    for method in METHODS:  # every score crossed with both tasks
        for ood, metric in (
            (None, "misclassification auroc"),
            (None, "misclassification ap"),
            *(("Lost & Found", metric) for metric in ("auroc", "ap", "fpr95")),
        ):
            assert 0 <= rows[ood, method, "default", metric]["mean"] <= 1
        assert ("Lost & Found", method, LARGE, "ap") in rows
    assert rows["Lost & Found", "epistemic", "default", "fpr95"]["paper_mean"] == 0.24
    assert rows[None, "mc-dropout", "default", "misclassification auroc"]["paper_mean"] is None
    quality = {name: rows[None, name, "default", "mean iou"]["mean"] for name in ("network", "majority class")}
    assert quality["network"] > 2 * quality["majority class"]
    costs = {method for _, method, _, metric in rows if metric == COST}
    assert costs == {"network", *METHODS} - {"mc-dropout-entropy"}

    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == [
        "deeplab-quick-0.safetensors",
        "deeplab-quick-dropout-0.safetensors",
    ]
    again = segmentation.run(quick=True, folder=tmp_path / "work")  # the networks are found
    assert [r for r in again.rows if r["metric"] != COST] == [r for r in study.rows if r["metric"] != COST]

    path = study.write(tmp_path, "make it")
    assert all((tmp_path / f"segmentation{end}.png").stat().st_size > 10_000 for end in ("", "-maps"))
    text = render(json.loads(path.read_text(encoding="utf-8")))
    assert text.startswith("| ours / paper | misclassified pixels: AUROC | AP | unknown objects: AP | FPR95 |")
    assert "/ 0.940 |" in text and "| majority class | " in text and f"epistemic, {LARGE}" in text
    for curve in study.curves["precision and recall"].values():
        assert len(curve["recall"]) == len(curve["precision"]) <= 300 and curve["recall"][-1] == 1
    assert set(study.data) == {"Cityscapes train", "Cityscapes val", "Lost & Found"}
    # Rules of the paper's claims find every row that they ask for.
    asked = [claim for claim in claims_dense.DENSE if claim.text.startswith("Segmentation")]
    assert len(asked) == 6 and all(list(claim.judge(claims_base.Results(tmp_path))) for claim in asked)


def test_scores_are_what_the_methods_say_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 3, 32, 64), generator=generator, dtype=torch.uint8)
    images[:, 0, :16] //= 4
    network, dropping = (
        DeepLab(4, encoder=EfficientNetLite0(dilated=True, width=0.1), width=8, dropout=share, seed=1).eval()
        for share in (0.0, 0.5)
    )
    with torch.no_grad():
        network.decoder.logits.bias -= network(images).mean((0, 2, 3))  # or else one class would be predicted alone
    labels = torch.zeros(6, 32, 64, dtype=torch.uint8)
    methods = Methods(network, dropping, images, labels, TINY)
    maps = methods(images[:2])
    with torch.no_grad():
        logits = network(images[:2])
        z = dict[str, Tensor]()
        hook = network.get_submodule(LAYER).register_forward_hook(lambda *args: z.update(z=args[-1]))
        network(images[:2])
        hook.remove()
    assert torch.equal(maps.prediction, logits.argmax(1))
    p = logits.softmax(1)
    entropy = -(p * p.log()).sum(1)
    torch.testing.assert_close(maps.scores["softmax-entropy", "default"], entropy, atol=1e-5, rtol=1e-4)
    alone = methods.coarse(images[:2]).epistemic
    assert alone.shape == (2, 8, 16) and torch.equal(maps.scores["epistemic", "default"], alone)
    assert torch.equal(maps.scores["aleatoric", "default"], methods.underfit(images[:2]).aleatoric)
    fine = maps.scores["aleatoric", "not underfit"]
    in_log = maps.scores["aleatoric-log", "default"]
    large = fine > 1e-30
    assert large.any()
    torch.testing.assert_close(fine[large].log(), in_log[large], atol=1e-3, rtol=1e-3)
    # The distance to the tenth nearest of the references, all of them compared.
    vectors = F.normalize(z["z"].movedim(1, -1).flatten(0, 2).double(), dim=1)
    assert methods.nearest.head is not None
    points = methods.nearest.head.terms[LAYER].method.index.points.double()
    assert len(points) == 200
    tenth = torch.cdist(vectors, points).kthvalue(10, dim=1).values.view(2, 8, 16).float()
    torch.testing.assert_close(maps.scores["neighbours", "default"], tenth, atol=1e-5, rtol=1e-5)
    information, total = (maps.scores[name, "default"] for name in ("mc-dropout", "mc-dropout-entropy"))
    assert bool((total >= information).all()) and float(information.max()) > 0
    for call in methods.calls().values():
        call(images[:1])


def known_scores(scores: dict[tuple[str, str], Tensor], prediction: Tensor, sampled: Tensor) -> Any:
    """Methods whose maps are known, in the order of the images' first byte."""

    def maps(images: Tensor) -> Maps:
        rows = images[:, 0, 0, 0].long()
        return Maps(prediction[rows], sampled[rows], {key: values[rows] for key, values in scores.items()})

    return maps


def test_measures_are_those_of_all_pixels_together() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 8, 16)
    labels, prediction, sampled = (torch.randint(4, (5, 8, 16), generator=generator) for _ in range(3))
    labels[:, :2] = 255
    fine, coarse = torch.rand(5, 8, 16, generator=generator), torch.rand(5, 4, 8, generator=generator)
    keys = {("softmax-entropy", "default"): fine, ("mc-dropout", "default"): fine, ("epistemic", "default"): coarse}
    keys |= {("aleatoric", "default"): fine.round(), ("aleatoric", "not underfit"): fine.floor()}
    methods, found = known_scores(keys, prediction, sampled), Found()
    plan = Plan(bits=20)
    find_mistakes(methods, images, labels.byte(), 2, plan, found)
    valid = labels != 255
    large = F.interpolate(coarse[:, None], size=(8, 16), mode="bilinear")[:, 0]
    for method, scores, said in (
        ("softmax-entropy", fine, prediction),
        ("mc-dropout", fine, sampled),
        ("epistemic", large, prediction),
    ):
        wrong = (said != labels)[valid]
        expected = metrics.auroc(negative=scores[valid][~wrong], positive=scores[valid][wrong])
        assert found.cells[None, method, "default", "misclassification auroc"] == pytest.approx(expected, abs=1e-4)
    zero = "share of pixels with an entropy of 0"
    shares = {variant: found.cells[None, "aleatoric", variant, zero] for variant in ("default", "not underfit")}
    assert shares["not underfit"] == 1 and shares["default"] == pytest.approx(float((fine < 0.5)[valid].float().mean()))
    right = (labels == 2)[valid].float().mean()
    assert found.cells[None, "majority class", "default", "pixel accuracy"] == pytest.approx(float(right))

    masks = torch.randint(2, (5, 16, 32), generator=generator).byte()
    masks[:, :4] = 255
    find_objects(methods, images, masks, "default", plan, found)
    find_objects(methods, images, masks, LARGE, plan, found)
    larger = F.interpolate(coarse[:, None], size=(16, 32), mode="bilinear")[:, 0]
    expected = metrics.average_precision(negative=larger[masks == 0], positive=larger[masks == 1])
    assert found.cells["Lost & Found", "epistemic", "default", "ap"] == pytest.approx(expected, abs=1e-3)
    assert ("Lost & Found", "aleatoric", LARGE, "ap") in found.cells and set(found.curves) == {k[0] for k in keys}
    assert "not underfit" in {key[2] for key in found.cells if key[0] is not None}
    means = {(row["method"], row["metric"]): row["mean"] for row in build_rows([found, found]) if row["std"] == 0}
    assert means["epistemic", "ap"] == round(found.cells["Lost & Found", "epistemic", LARGE, "ap"], 4)


def test_curves_in_files_keep_their_ends() -> None:
    recall = torch.linspace(0, 1, 5000).square()
    curve = thin((recall, 1 - recall / 2), points=50)
    assert curve["recall"][0] == 0 and curve["recall"][-1] == 1 and 40 <= len(curve["recall"]) <= 50
    assert max(np.diff(curve["recall"])) < 0.03


def test_pictures_of_maps_name_the_classes() -> None:
    scores = dict.fromkeys(("epistemic", "aleatoric", "aleatoric-log"), torch.zeros(4, 8))
    one = Scene("street", "unknown objects", torch.full((8, 16), 13), scores, torch.full((8, 16), 255))
    figure = draw_scenes([one, one._replace(what="misclassified")])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["car", "to be found", "ignored"]
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[4] == "unknown objects" and titles[9] == "misclassified" and titles[5] == ""


def test_images_are_brought_to_the_scale_of_training(streets: Path) -> None:
    parts = read(TINY, torch.device("cpu"))
    assert parts.unknown(LARGE).shape == (3, 3, 64, 128) and parts.masks.shape == (3, 64, 128)
    small = parts.unknown("default")
    assert small.shape == (3, 3, 32, 64) and small.dtype == torch.uint8
    mean = F.avg_pool2d(parts.unknown_images.float(), 2)
    assert float((small.float() - mean).abs().mean()) < 8


def test_tools() -> None:
    found: list[str] = []
    with dense_tools.collected(found):
        import warnings

        warnings.warn("a class is rare", stacklevel=1)
    assert found == ["a class is rare"]
    assert dense_tools.milliseconds_per_megapixel(lambda images: None, torch.zeros(1, 3, 8, 8), 3) > 0
    pairs = [(Path(f"{i}"), Path(f"{i}")) for i in range(10)]
    files = DenseFiles("drawn", pairs, lambda path, content: torch.zeros(0))
    assert [pair[0].name for pair in dense_tools.some_of(files, 4).pairs] == ["0", "2", "5", "7"]
    assert dense_tools.some_of(files, 12) is files


def test_errors_come_before_any_training(streets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="seeds is empty"):
        segmentation.run(seeds=[], quick=True)
    monkeypatch.setattr(segmentation, "train_dense", lambda *args, **kwargs: pytest.fail("trained"))
    pictures = pytest.importorskip("PIL.Image")
    masks = streets / "fishyscapes_lostandfound" / "labels_masks"
    for path in masks.iterdir():
        pictures.fromarray(np.zeros((64, 128), np.uint8)).save(path)
    with pytest.raises(ValueError, match=r"Lost & Found has pixels of 1 classes in 3 images, expected at least 2"):
        segmentation.run(quick=True)
    next(masks.iterdir()).unlink()
    with pytest.raises(FileNotFoundError, match="the copy is incomplete"):
        segmentation.run(quick=True)

    def missing(*, dilated: bool) -> None:
        raise ImportError("weights come with a package")

    monkeypatch.setattr(EfficientNetLite0, "pretrained", missing)
    monkeypatch.setattr(segmentation, "read", lambda *args, **kwargs: pytest.fail("read"))
    with pytest.raises(ImportError, match="weights"):
        segmentation.run()
    result = CliRunner().invoke(app, ["segmentation", "--out", str(streets / "out")])
    assert result.exit_code == 1 and result.stderr == "error: weights come with a package\n"


@pytest.mark.parametrize(("area", "holds"), [(0.93, [True, False]), (0.90, [False, False])])
def test_a_verdict_follows_the_numbers(tmp_path: Path, area: float, holds: list[bool]) -> None:
    about = {"train": "Cityscapes", "ood": None, "metric": "misclassification auroc", "variant": "default"}
    areas = {"softmax-entropy": 0.95, "aleatoric": area, "aleatoric-log": 0.8}
    rows = [{**about, "method": method, "mean": mean} for method, mean in areas.items()]
    (tmp_path / "segmentation.json").write_text(json.dumps({"rows": rows}))
    assert [finding.holds for finding in claims_dense._as_softmax(claims_base.Results(tmp_path))] == holds
