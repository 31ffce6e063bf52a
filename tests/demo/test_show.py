"""The demonstration: its numbers against independent ones, its picture, its text."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.metrics import roc_auc_score

from hidden_uncertainty import plots
from hidden_uncertainty.demo import show as demo
from hidden_uncertainty.demo.measure import ENTROPY
from hidden_uncertainty.demo.show import Demonstration, Settings, summarise

SMALL = replace(
    Settings(), epochs=4, max_dim=16, layers=("conv1", "hidden", "output"), degrees=(0, 90), deviations=(0.3,)
)
SCORES = [*SMALL.layers, ENTROPY]


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    before = torch.random.get_rng_state(), torch.get_num_threads()
    found = demo.measure(SMALL)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    return found


def test_areas_are_those_of_scikit_learn(shown: Demonstration) -> None:
    changes = {90: shown.numbers["rotation"][1]["auroc"], 0: shown.numbers["rotation"][0]["auroc"]}
    for angle, areas in changes.items():
        assert list(areas) == SCORES
        for name, area in areas.items():
            scores = torch.cat([shown.test.scores[name], shown.rotated[angle].scores[name]]).numpy()
            assert area == pytest.approx(roc_auc_score(np.repeat([0, 1], 289), scores))
    assert set(shown.numbers["rotation"][0]["auroc"].values()) == {0.5}


def test_surprising_means_above_the_threshold(shown: Demonstration) -> None:
    thresholds = shown.numbers["false_alarm"]["threshold"]
    assert thresholds["hidden"] == shown.threshold
    for row, scored in (
        (shown.numbers["left_out"], shown.left_out),
        (shown.numbers["rotation"][1], shown.rotated[90]),
        (shown.numbers["noise"][0], shown.noisy[0.3]),
    ):
        for name in SCORES:
            share = (scored.scores[name] > thresholds[name]).double().mean().item()
            assert row["surprising"][name] == pytest.approx(share)
        assert row["surprising"]["hidden"] == pytest.approx(scored.uncertainty.surprising.double().mean().item())
        for name, layer in scored.uncertainty.layers.items():
            assert layer.p_value is not None
            assert torch.equal(layer.p_value, scored.p_value[name])


def test_it_knows_what_it_does_not_know(shown: Demonstration) -> None:
    numbers = shown.numbers
    assert numbers["accuracy"]["test"] > 0.9
    assert numbers["rotation"][1]["accuracy"] < 0.4
    assert numbers["left_out"]["accuracy"] == 0
    for name in SMALL.layers:
        assert numbers["false_alarm"]["seen"][name] < 0.15  # 5 % asked, of 289
    assert numbers["rotation"][1]["auroc"]["conv1"] > 0.9
    assert numbers["left_out"]["auroc"]["hidden"] > 0.85


def test_entropy_is_that_of_the_softmax(shown: Demonstration) -> None:
    entropy = shown.test.scores[ENTROPY]
    assert entropy.dtype == torch.float64
    assert (entropy > 0).all()
    assert (entropy <= np.log(8)).all()


def test_accuracy_of_the_kept(shown: Demonstration) -> None:
    correct = shown.test.correct.numpy()
    order = np.argsort(shown.test.scores["hidden"].numpy())
    found = shown.numbers["rejection"]["test"]["epistemic"]
    accuracy = np.cumsum(correct[order]) / np.arange(1, 290)
    assert found["accuracy_of_kept"]["50%"] == pytest.approx(accuracy[143])
    assert found["accuracy_of_kept"]["100%"] == pytest.approx(correct.mean())
    assert found["aurc"] == pytest.approx((1 - accuracy).mean())


def test_most_surprising(shown: Demonstration) -> None:
    listed = shown.numbers["most_surprising"]["left_out"]
    scores = shown.left_out.scores["hidden"]
    assert [entry["epistemic"] for entry in listed] == scores.sort(descending=True).values[:10].tolist()
    assert {entry["label"] for entry in listed} <= {8, 9}
    assert {entry["prediction"] for entry in listed} <= set(range(8))


def test_the_picture_shows_the_numbers(shown: Demonstration, tmp_path: Path) -> None:
    figure = demo.draw(shown)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    for name in SCORES:
        assert f"{shown.numbers['left_out']['auroc'][name]:.2f}" in texts
    curves = next(ax for ax in figure.axes if ax.get_xlabel() == "rotation (degrees)")
    drawn = {str(line.get_label()): np.asarray(line.get_xydata())[:, 1] for line in curves.lines}
    np.testing.assert_allclose(drawn["accuracy"], [100 * row["accuracy"] for row in shown.numbers["rotation"]])
    path = plots.save(figure, tmp_path / "demo.png")
    with Image.open(path) as image:
        assert image.size == (1680, 960)
    assert path.stat().st_size < 400_000


def test_nothing_in_the_picture_leaves_it(shown: Demonstration) -> None:
    figure = demo.draw(shown)
    figure.draw_without_rendering()
    whole = figure.bbox
    for ax in figure.axes:
        box = ax.get_tightbbox()
        assert box is not None
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x1 <= whole.x1, text.get_text()


@pytest.mark.parametrize("colours", [False, True])
def test_the_summary_fits_eighty_columns(shown: Demonstration, colours: bool) -> None:
    numbers = {**shown.numbers, "seconds": {**shown.numbers["seconds"], "total": 1.0}}
    file = io.StringIO()
    console = Console(file=file, force_terminal=colours, width=80, highlight=False)
    summarise(replace(shown, numbers=numbers), [Path("out/demo.png")], console)
    text = file.getvalue()
    assert ("\x1b" in text) == colours
    assert "out/demo.png" in text
    if not colours:
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        assert f"{shown.numbers['left_out']['auroc']['hidden']:.3f}" in text


def test_the_file_holds_what_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Demonstration) -> None:
    monkeypatch.setattr(demo, "measure", lambda settings: shown)
    numbers = demo.run(tmp_path / "new" / "folder", SMALL)
    assert json.loads((tmp_path / "new" / "folder" / "demo.json").read_text(encoding="utf-8")) == numbers
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["demo.json", "demo.png"]
    assert set(numbers["seconds"]) == {"training", "fitting", "scoring", "picture", "total"}
    assert numbers["versions"]["torch"] == version("torch")
    assert numbers["data"] == {
        "classes_left_out": [8, 9],
        "train": 865,
        "calibration": 289,
        "test": 289,
        "left_out": 354,
    }
    assert numbers["dimensions"]["conv1"] == {"layer": 1024, "kept": 16}
