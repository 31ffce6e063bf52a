"""The demonstration: its numbers against independent ones, its picture, its table."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.metrics import roc_auc_score

from hidden_uncertainty import plots
from hidden_uncertainty.demo import show as demo
from hidden_uncertainty.demo.show import ENTROPY, KNOWN, LAYERS, LEFT_OUT, Found

SCORES = [*LAYERS, ENTROPY]


@pytest.fixture(scope="module")
def found() -> Found:
    before = torch.random.get_rng_state(), torch.get_num_threads()
    found = demo.measure(quick=True)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    return found


def test_areas_are_those_of_scikit_learn(found: Found) -> None:
    for name in SCORES:
        scores = torch.cat([found.changed[KNOWN].scores[name], found.changed["turned 90°"].scores[name]]).numpy()
        assert found.auroc("turned 90°", name) == pytest.approx(roc_auc_score(np.repeat([0, 1], 289), scores))
        assert found.auroc(KNOWN, name) == 0.5


def test_surprising_means_above_the_threshold(found: Found) -> None:
    for seen in (*found.changed.values(), *found.turned.values()):
        assert torch.equal(seen.surprising["hidden"], seen.scores["hidden"] > found.threshold)
        assert list(seen.scores) == list(seen.surprising) == SCORES


def test_it_knows_what_it_does_not_know(found: Found) -> None:
    assert found.trained_on == 865 and len(found.changed[LEFT_OUT].data) == 354
    assert found.changed[KNOWN].right.double().mean() > 0.9
    assert found.turned[90].right.double().mean() < 0.4
    assert not found.changed[LEFT_OUT].right.any()
    for name in LAYERS:
        assert found.changed[KNOWN].surprising[name].double().mean() < 0.15  # 5 % asked, of 289
    assert found.auroc("turned 90°", "conv1") > 0.9
    assert found.auroc(LEFT_OUT, "hidden") > 0.85


def test_entropy_is_that_of_the_softmax(found: Found) -> None:
    entropy = found.changed[KNOWN].scores[ENTROPY]
    assert entropy.dtype == torch.float64
    assert (entropy > 0).all()
    assert (entropy <= np.log(8)).all()


def test_the_picture_shows_the_numbers(found: Found, tmp_path: Path) -> None:
    figure = demo.draw(found)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    for name in SCORES:
        assert f"{found.auroc(LEFT_OUT, name):.2f}" in texts
    curves = next(ax for ax in figure.axes if ax.get_xlabel() == "rotation (degrees)")
    drawn = {str(line.get_label()): np.asarray(line.get_xydata())[:, 1] for line in curves.lines}
    accuracy = [100 * seen.right.double().mean().item() for seen in found.turned.values()]
    np.testing.assert_allclose(drawn["accuracy"], accuracy)
    path = plots.save(figure, tmp_path / "demo.png")
    with Image.open(path) as image:
        assert image.size == (1680, 960)
    assert path.stat().st_size < 400_000


def test_nothing_in_the_picture_leaves_it(found: Found) -> None:
    figure = demo.draw(found)
    figure.draw_without_rendering()
    whole, drawn = figure.bbox, figure.get_tightbbox()
    assert drawn.x0 >= 0 and drawn.y0 >= 0
    assert drawn.x1 * figure.dpi <= whole.x1 and drawn.y1 * figure.dpi <= whole.y1


@pytest.mark.parametrize("colours", [False, True])
def test_the_table_fits_eighty_columns(found: Found, colours: bool) -> None:
    file = io.StringIO()
    Console(file=file, force_terminal=colours, width=80, highlight=False).print(demo.tabulate(found))
    text = file.getvalue()
    assert ("\x1b" in text) == colours
    if not colours:
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        assert f"{found.auroc(LEFT_OUT, 'hidden'):.3f}" in text


def test_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    monkeypatch.setattr(demo, "measure", lambda **options: found)
    assert demo.run(tmp_path / "new" / "folder") is found
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["demo.png"]
