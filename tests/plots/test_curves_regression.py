"""Sparsification, read back from their artists and compared with the data and the metrics they show."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hidden_uncertainty import metrics, plots

INF = float("inf")
X = torch.linspace(-2, 2, 41)
Y = X.sin()


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def line(ax: Axes, name: str) -> Line2D:
    (found,) = (line for line in ax.lines if str(line.get_label()).startswith(name))
    return found


def points(ax: Axes, name: str) -> np.ndarray:
    return np.asarray(line(ax, name).get_xydata())  # (points, 2)


def test_sparsification_lines_are_the_curves_and_the_legend_holds_their_areas() -> None:
    error = normal(900)
    groups = {"good": (error.abs() + normal(900, seed=1).abs(), error), "none": (normal(900, seed=2), error)}
    ax = plots.plot_sparsification(groups)
    named = {name: {"uncertainty": score, "error": error} for name, (score, _) in groups.items()}
    for name, pair in named.items():
        removed, rest = metrics.sparsification(**pair)
        expected = np.stack([removed, rest / rest[0]], axis=1)[:892]  # until 1 % are left
        np.testing.assert_allclose(points(ax, name), expected)
        assert ax.get_ylim()[1] > expected[expected[:, 0] <= 0.95, 1].max()
    removed, best = metrics.sparsification_oracle(error)
    np.testing.assert_allclose(points(ax, "oracle"), np.stack([removed, best / best[0]], axis=1)[:892])
    assert legend(ax) == [*(f"{name}: {metrics.ause(**pair):.3f}" for name, pair in named.items()), "oracle"]
    found = ax.get_legend()
    assert found is not None
    assert found.get_title().get_text() == "AUSE (lower is better)"


def test_methods_with_errors_of_their_own_have_oracles_of_their_own() -> None:
    groups = {name: (normal(50, seed=i), normal(50, seed=i + 5) ** 3) for i, name in enumerate("ab")}
    ax = plots.plot_sparsification(groups)
    curves, oracles = ax.lines[:2], ax.lines[2:]
    assert [line.get_color() for line in oracles] == [line.get_color() for line in curves]
    for line, (_, error) in zip(oracles, groups.values(), strict=True):
        _, best = metrics.sparsification_oracle(error)
        np.testing.assert_allclose(np.asarray(line.get_ydata()), best / best[0])
    assert [name.partition(":")[0] for name in legend(ax)] == ["a", "b", "oracle"]


def test_long_curves_are_thinned() -> None:
    error = normal(30_000)
    ax = plots.plot_sparsification({"x": (error.abs(), error)})
    assert all(500 < len(np.asarray(line.get_xdata())) <= 2000 for line in ax.lines)


@pytest.mark.parametrize(
    "plot",
    [
        lambda ax: plots.plot_sparsification({"a": (X, Y)}, ax=ax),
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
    with pytest.raises(ValueError, match="groups is empty"):
        plots.plot_sparsification({})
    with pytest.raises(ValueError, match="every error of 'a' is 0"):
        plots.plot_sparsification({"a": ([0.0, 1.0], [0.0, 0.0])})
