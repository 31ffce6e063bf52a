"""Plots of detection, read back from their artists and compared with the data and the metrics they show."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch

from hidden_uncertainty import metrics, plots

INF = float("inf")


def normal(n: int, mean: float = 0.0, deviation: float = 1.0, seed: int = 0) -> torch.Tensor:
    return mean + deviation * torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def outlines(ax: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Heights and edges of each histogram that the legend names."""
    steps = [patch for patch in ax.patches if isinstance(patch, StepPatch) and not patch.get_fill()]
    return {str(patch.get_label()): patch.get_data()[:2] for patch in steps}


def curve(ax: Axes, name: str) -> np.ndarray:
    (line,) = (line for line in ax.lines if str(line.get_label()).startswith(f"{name}:"))
    return np.asarray(line.get_xydata())  # (points, 2)


def test_histograms_are_densities_of_the_groups() -> None:
    groups = {"familiar": normal(3000).reshape(30, 100), "unknown": normal(1000, mean=4, deviation=2, seed=1)}
    ax = plots.plot_scores(groups)
    low, high = ax.get_xlim()
    assert list(outlines(ax)) == legend(ax) == ["familiar", "unknown"]
    for name, (heights, edges) in outlines(ax).items():
        scores = groups[name].flatten().numpy()
        assert edges[0] == pytest.approx(low)
        assert edges[-1] == pytest.approx(high)
        expected = [((scores >= a) & (scores < b)).mean() / (b - a) for a, b in pairwise(edges)]
        np.testing.assert_allclose(heights, expected)
        assert np.quantile(scores, 0.01) > low
        assert np.quantile(scores, 0.99) < high
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epistemic uncertainty (nats)", "density")
    assert ax.get_ylim()[0] == 0


def test_a_filled_shape_lies_under_every_outline() -> None:
    ax = plots.plot_scores({"a": normal(50), "b": normal(50, seed=1)})
    filled = [patch for patch in ax.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    for patch, (heights, edges) in zip(filled, outlines(ax).values(), strict=True):
        np.testing.assert_array_equal(patch.get_data()[0], heights)
        np.testing.assert_array_equal(patch.get_data()[1], edges)


def test_far_outliers_do_not_squash_the_picture_and_the_legend_says_so() -> None:
    wild = torch.cat([normal(950), torch.full((9,), 1e12), torch.full((41,), INF)])
    ax = plots.plot_scores({"wild": wild, "tame": normal(1000, seed=1)})
    low, high = ax.get_xlim()
    assert -5 < low < -2
    assert 2 < high < 5
    inside = float(((wild >= low) & (wild <= high)).double().mean())
    assert 0.93 < inside <= 0.95
    assert legend(ax) == [f"wild ({1 - inside:.0%} outside)", "tame"]
    heights, edges = outlines(ax)[legend(ax)[0]]
    assert (heights * np.diff(edges)).sum() == pytest.approx(inside)


def test_a_narrow_group_beside_a_wide_one_keeps_its_shape() -> None:
    narrow, wide = normal(5000, mean=100, deviation=3), normal(5000, mean=500, deviation=100, seed=1)
    bars = outlines(plots.plot_scores({"narrow": narrow, "wide": wide}))
    assert (bars["narrow"][0] > 0).sum() >= 10
    assert len(bars["wide"][0]) < len(bars["narrow"][0])


@pytest.mark.parametrize(
    "values",
    [[3.0], [3.0, 3.0, 3.0], [3.0, INF, -INF], [4e37, 4e37], [-1e17], [1e9, 1e9 + 2e-7], [0.0, 0.0]],
)
def test_scores_without_spread_are_drawn(values: list[float]) -> None:
    ax = plots.plot_scores({"same": values})
    ((heights, edges),) = outlines(ax).values()
    assert (np.diff(edges) > 0).all()
    assert (heights * np.diff(edges)).sum() == pytest.approx(np.isfinite(values).mean())
    assert ax.get_xlim()[0] < values[0] < ax.get_xlim()[1]


def test_the_threshold_is_marked_and_in_the_picture() -> None:
    ax = plots.plot_scores({"familiar": normal(100)}, threshold=25.0, label="distance")
    (line,) = ax.lines
    assert np.asarray(line.get_xdata()).tolist() == [25.0, 25.0]
    assert ax.get_xlim()[1] > 25
    assert legend(ax) == ["familiar", "threshold 25"]
    assert ax.get_xlabel() == "distance"


def test_roc_lines_are_the_curves_and_the_legend_holds_their_areas() -> None:
    groups: dict[str, Any] = {
        "epistemic": (normal(200), normal(150, mean=2, seed=1)),
        "ties": ([0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 3.0]),
    }
    ax = plots.plot_roc(groups)
    named = {name: {"negative": low, "positive": high} for name, (low, high) in groups.items()}
    for name, pair in named.items():
        np.testing.assert_array_equal(curve(ax, name), np.stack([*metrics.roc_curve(**pair)], axis=1))
    assert legend(ax) == [f"{name}: {metrics.auroc(**pair):.3f}" for name, pair in named.items()]
    found = ax.get_legend()
    assert found is not None
    assert found.get_title().get_text() == "AUROC"
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[0, 0], [1, 1]])
    assert ax.get_aspect() == 1


def test_long_curves_are_thinned_without_being_moved() -> None:
    negative, positive = normal(30_000), normal(30_000, mean=4, seed=1)
    drawn = curve(plots.plot_roc({"x": (negative, positive)}), "x")
    rates = metrics.roc_curve(negative=negative, positive=positive)
    whole = {tuple(point) for point in np.stack([*rates], axis=1).tolist()}
    assert 500 < len(drawn) <= 2000
    assert all(tuple(point) in whole for point in drawn.tolist())
    assert np.diff(drawn.sum(1)).max() < 0.002  # evenly, along steep and flat parts alike
    assert drawn[0].tolist() == [0, 0]
    assert drawn[-1].tolist() == [1, 1]
    area = torch.trapezoid(*torch.tensor(drawn).flip(1).unbind(1))
    assert float(area) == pytest.approx(metrics.auroc(negative=negative, positive=positive), abs=1e-4)


def test_rejection_lines_are_the_curves_and_the_legend_holds_their_areas() -> None:
    uncertainty = normal(900)
    correct = uncertainty + normal(900, seed=1) < 1
    groups = {"good": (uncertainty, correct), "none": (normal(900, seed=2), correct)}
    ax = plots.plot_accuracy_rejection(groups)
    for name, pair in groups.items():
        kept, accuracy = metrics.accuracy_rejection(*pair)
        np.testing.assert_array_equal(curve(ax, name), np.stack([kept, accuracy], axis=1)[8:])  # from 1 % on
        assert ax.get_ylim()[0] < accuracy[kept >= 0.05].min()
    assert legend(ax) == [f"{name}: {metrics.aurc(*pair):.4f}" for name, pair in groups.items()]
    assert ax.get_ylim()[1] > 1


def test_a_wrong_first_answer_does_not_set_the_range() -> None:
    correct = torch.ones(1000, dtype=torch.bool)
    correct[0] = False
    ax = plots.plot_accuracy_rejection({"x": (torch.arange(1000), correct)})
    assert ax.get_ylim()[0] > 0.9
    perfect = plots.plot_accuracy_rejection({"x": (torch.arange(1000), torch.ones(1000))})
    assert perfect.get_ylim()[0] < 1 < perfect.get_ylim()[1]


def test_many_groups_stay_distinct_and_their_legend_leaves_the_picture() -> None:
    groups = {f"network {i}": (normal(20, seed=i), normal(20, mean=1, seed=99 + i)) for i in range(12)}
    ax = plots.plot_roc(groups)
    lines = [line for line in ax.lines if str(line.get_label()).startswith("network")]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 12
    found = ax.get_legend()
    assert found is not None
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    box = found.get_window_extent()
    assert box.x0 > ax.get_window_extent().x1
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("plot", "data"),
    [
        (plots.plot_scores, normal(30)),
        (plots.plot_roc, (normal(30), normal(30, seed=1))),
        (plots.plot_accuracy_rejection, (normal(30), normal(30, seed=1) > 0)),
    ],
)
def test_draws_where_it_is_told_and_touches_nothing_global(plot: Any, data: Any) -> None:
    mpl.get_backend()  # settled on first sight
    before, figures = mpl.rcParams.copy(), pyplot.get_fignums()
    given = Figure().subplots()
    assert plot({"x": data}, ax=given) is given
    assert [artist for artist in given.get_children() if isinstance(artist, Line2D | StepPatch)]
    assert plot({"x": data}) is not plot({"x": data})
    assert mpl.rcParams == before
    assert pyplot.get_fignums() == figures
    with pytest.raises(ValueError, match="groups is empty"):
        plot({}, ax=given)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' holds 1 NaN among 2 values"):
        plots.plot_scores({"x": [1.0, float("nan")]})
    with pytest.raises(ValueError, match="'x' is empty"):
        plots.plot_scores({"x": []})
    with pytest.raises(ValueError, match="every score is infinite"):
        plots.plot_scores({"x": [INF], "y": [-INF]})
    with pytest.raises(TypeError, match=r"a mapping from names to what is drawn, such as \{'test': ...\}, not Tensor"):
        plots.plot_scores(normal(9))  # type: ignore[arg-type]


def test_save_writes_axes_figures_and_subfigures(tmp_path: Path) -> None:
    whole = Figure(figsize=(4, 2))
    parts: Any = whole.subfigures(1, 2)
    inner = plots.plot_roc({"x": ([1.0], [2.0])}, ax=parts[1].subplots())
    for picture in (Figure().subplots(), whole, inner):
        path = plots.save(picture, tmp_path / "deep" / "er" / "plot.png")
        assert path.read_bytes().startswith(b"\x89PNG")
    assert plots.save(inner, str(tmp_path / "plot.PDF")).read_bytes().startswith(b"%PDF")
    assert pyplot.imread(tmp_path / "deep" / "er" / "plot.png").shape == (320, 640, 4)  # the whole of 4 x 2 inches
    assert [p.name for p in (tmp_path / "deep" / "er").iterdir()] == ["plot.png"]


def test_save_leaves_the_old_file_when_it_cannot_make_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plot.png"
    path.write_text("old")
    for name in ("plot.doc", "plot"):
        with pytest.raises(ValueError, match=r"cannot tell the format of .*png"):
            plots.save(Figure().subplots(), tmp_path / name)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="disk full"):
        plots.save(Figure().subplots(), path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plot.png", "old")]
