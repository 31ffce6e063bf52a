"""Precision-recall curves, read back from their artists and compared with the data they show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from reproduction.studies.segmentation.curves import plot_precision_recall
from reproduction.studies.segmentation.stream import PixelDetection


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_nothing_is_cut(figure: Figure) -> None:
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def curve(shift: float, n: int = 3000) -> tuple[Tensor, Tensor, float]:
    positive = torch.arange(n) % 20 == 0
    scores = noise(n) + shift * positive
    meter = PixelDetection(20)
    meter.update(scores, positive)
    return *meter.precision_recall(), sklearn_metrics.average_precision_score(positive, scores)


def test_lines_are_the_curves_and_the_legend_holds_average_precision() -> None:
    found = {"density": curve(2.0), "dropout": curve(1.0)}
    figure = plot_precision_recall({name: (x, y) for name, (x, y, _) in found.items()}, zoom=0.7)
    whole, near = figure.axes
    legend = whole.get_legend()
    assert legend is not None
    expected = [f"{name}: {area:.3f}" for name, (_, _, area) in found.items()]
    assert [text.get_text() for text in legend.get_texts()] == [*expected, "chance: 0.050"]
    for (recall, precision, _), line, close in zip(found.values(), whole.lines, near.lines, strict=False):
        points = set(zip(recall.tolist(), precision.tolist(), strict=True))
        for drawn in (line, close):
            assert points.issuperset(map(tuple, np.asarray(drawn.get_xydata()).tolist()))
        recalls = np.asarray(line.get_xdata())
        assert np.diff(np.unique(recalls)).max() <= 2 / 150  # 150 positives, none left out
        assert np.asarray(close.get_xdata()).min() <= 0.7
    assert near.get_xlim() == (0.7, 1.0)
    high = max(float(precision[recall >= 0.7].max()) for recall, precision, _ in found.values())
    assert high < near.get_ylim()[1] < 1.2 * high
    (region,) = whole.patches
    assert region.get_window_extent().height == pytest.approx(
        whole.transData.transform((0, near.get_ylim()[1]))[1] - whole.transData.transform((0, 0))[1]
    )
    assert_nothing_is_cut(figure)


def test_many_curves_and_many_points_are_drawn() -> None:
    recall = torch.linspace(0, 1, 1_000_000, dtype=torch.float64)
    figure = plot_precision_recall({f"method {i}": (recall, 1 - recall * (0.5 + i / 40)) for i in range(8)})
    whole, near = figure.axes
    assert max(len(line.get_xdata()) for line in [*whole.lines, *near.lines]) <= 2000
    assert near.get_legend() is not None
    assert whole.get_legend() is None
    assert len(whole.lines) == 8  # no line of chance: each curve ends elsewhere
    assert_nothing_is_cut(figure)


def test_bad_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="groups is empty"):
        plot_precision_recall({})
    with pytest.raises(ValueError, match=r"recall of 'a' must rise within \[0, 1\], got 1 to 0.*flip"):
        plot_precision_recall({"a": ([1.0, 0.5, 0.0], [0.1, 0.2, 1.0])})
    with pytest.raises(ValueError, match=r"'a' needs one precision per recall, got \(2,\) and \(3,\)"):
        plot_precision_recall({"a": ([0.0, 0.5, 1.0], [0.1, 0.2])})
    with pytest.raises(ValueError, match="precision of 'a' holds 1 NaN"):
        plot_precision_recall({"a": ([0.5, 1.0], [float("nan"), 0.2])})
    for zoom in (0.0, 1.0):
        with pytest.raises(ValueError, match="zoom must be between 0 and 1"):
            plot_precision_recall({"a": ([0.5, 1.0], [0.5, 0.2])}, zoom=zoom)
