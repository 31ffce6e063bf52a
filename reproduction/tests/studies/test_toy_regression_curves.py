"""Curves over one input, read back from their artists and compared with the data they show."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reproduction.studies.toy_regression import curves

INF = float("inf")
X = torch.linspace(-2, 2, 41)
Y = X.sin()


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def line(ax: Axes, name: str) -> Line2D:
    (found,) = (line for line in ax.lines if str(line.get_label()).startswith(name))
    return found


def points(ax: Axes, name: str) -> np.ndarray:
    return np.asarray(line(ax, name).get_xydata())  # (points, 2)


def band(ax: Axes) -> np.ndarray:
    (found,) = (artist for artist in ax.collections if isinstance(artist, PolyCollection))
    return np.asarray(found.get_paths()[0].vertices)  # (corners, 2)


def test_curves_band_data_and_gap_are_where_they_belong() -> None:
    order = torch.randperm(41, generator=torch.Generator().manual_seed(0))
    x, y = X[order][:, None], Y[order]
    ax = curves.plot_regression(
        x, y, y - 0.1, y + 0.2, data=(X[:5], X[:5]), truth=y + 0.05, gap=(-0.5, 0.5), band="± 2σ"
    )
    assert legend(ax) == ["gap in the data", "training data", "± 2σ", "truth", "prediction"]
    np.testing.assert_allclose(points(ax, "prediction"), torch.stack([X, Y], 1))
    np.testing.assert_allclose(points(ax, "truth"), torch.stack([X, Y + 0.05], 1))
    np.testing.assert_allclose(points(ax, "training data"), torch.stack([X[:5], X[:5]], 1))
    corners = {tuple(corner) for corner in band(ax).round(5).tolist()}
    expected = torch.cat([torch.stack([X, Y - 0.1], 1), torch.stack([X, Y + 0.2], 1)]).double().numpy()
    assert {tuple(corner) for corner in expected.round(5).tolist()} <= corners
    (shade,) = ax.patches
    assert shade.get_window_extent().transformed(ax.transData.inverted()).intervalx.tolist() == pytest.approx(
        [-0.5, 0.5]
    )
    assert ax.get_xlim() == pytest.approx((-2, 2))


def test_what_goes_far_from_the_data_is_cut_and_what_does_not_fills_the_picture() -> None:
    data = ([0.0, 1.0], [0.0, 1.0])
    tame = curves.plot_regression(X, Y, Y - 0.1, Y + 0.1, data=data)
    assert tame.get_ylim()[0] == pytest.approx(-1.1, abs=0.15)
    assert tame.get_ylim()[1] == pytest.approx(1.1, abs=0.15)
    wild = curves.plot_regression(X, 100 * X, 100 * X - 5, 100 * X + 5, data=data)
    assert wild.get_ylim() == pytest.approx((-1.15, 2.15))
    assert wild.get_ylim() == curves.plot_regression(X, 100 * X, X - INF, X + INF, data=data).get_ylim()
    alone = curves.plot_regression(X, 0 * X, 0 * X, 0 * X)
    assert alone.get_ylim()[0] < 0 < alone.get_ylim()[1]


def test_an_endless_band_reaches_past_both_edges() -> None:
    low, high = torch.where(X > 0, -INF, Y - 0.1), torch.where(X > 0, INF, Y + 0.1)
    ax = curves.plot_regression(X, Y, low, high)
    right = band(ax)[band(ax)[:, 0] > 0.05]
    assert np.isfinite(right).all()
    assert right[:, 1].min() < ax.get_ylim()[0]
    assert right[:, 1].max() > ax.get_ylim()[1]


def test_uncertainty_along_an_input_runs_from_0_to_1() -> None:
    ax = curves.plot_along(X.flip(0), {"density": X.flip(0) ** 2 - 7, "flat": 0 * X}, gap=(0.0, 0.5), label="surprise")
    np.testing.assert_allclose(points(ax, "density"), torch.stack([X, X**2 / 4], 1), atol=1e-6)
    np.testing.assert_allclose(points(ax, "flat"), torch.stack([X, 0 * X], 1))
    assert legend(ax) == ["gap in the data", "density", "flat"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "surprise")
    endless = curves.plot_along([0.0, 1.0, 2.0, 3.0], {"a": [-INF, 1.0, 3.0, INF]})
    assert points(endless, "a")[:, 1].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "plot",
    [
        lambda ax: curves.plot_regression(X, Y, Y, Y, ax=ax),
        lambda ax: curves.plot_along(X, {"a": Y}, ax=ax),
    ],
)
def test_draws_where_it_is_told_and_touches_nothing_global(plot: Any) -> None:
    mpl.get_backend()  # settled on first sight
    before, figures = mpl.rcParams.copy(), pyplot.get_fignums()
    given = Figure().subplots()
    assert plot(given) is given
    assert given.lines
    assert plot(None) is not plot(None)
    assert mpl.rcParams == before
    assert pyplot.get_fignums() == figures


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="'low' must have one value per x, got 3 for 41"):
        curves.plot_regression(X, Y, Y[:3], Y)
    with pytest.raises(ValueError, match="low must not be above high"):
        curves.plot_regression(X, Y, Y + 0.1, Y)
    with pytest.raises(ValueError, match="every prediction is infinite"):
        curves.plot_regression(X, Y + INF, Y, Y + INF)
    with pytest.raises(ValueError, match="'prediction' holds 1 NaN among 2 values"):
        curves.plot_regression([0.0, 1.0], [0.0, float("nan")], [0.0, 0.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="'a' is infinite everywhere"):
        curves.plot_along([0.0], {"a": [INF]})
    with pytest.raises(ValueError, match="groups is empty"):
        curves.plot_along(X, {})
