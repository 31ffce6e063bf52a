"""Maps, read back from their artists and compared with the data they show."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from hidden_uncertainty import Uncertainty, plots
from hidden_uncertainty.plots.pixels import CLASS_COLOURS

INF = float("inf")
GREY = "#d9d9d9"


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def panels(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(loc="left"): ax for ax in figure.axes if ax.get_title(loc="left")}


def shown(ax: Axes) -> np.ndarray:
    (image,) = ax.images
    return np.asarray(image.get_array())


def names(figure: Figure) -> dict[str, str]:
    """Colours that the legend below the panels names."""
    (legend,) = figure.legends
    colours = [to_hex(patch.get_facecolor()) for patch in legend.get_patches()]
    return dict(zip([text.get_text() for text in legend.get_texts()], colours, strict=True))


def assert_nothing_is_cut(figure: Figure) -> None:
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def test_an_uncertainty_of_one_image_is_drawn_in_order(tmp_path: Path) -> None:
    u = Uncertainty(prediction=noise(2, 6, 8).long(), epistemic=noise(2, 6, 8), aleatoric=noise(2, 6, 8, seed=1))
    assert u.aleatoric is not None
    figure = plots.plot_maps(u[1], image=noise(3, 12, 16).sigmoid(), label=torch.zeros(6, 8, dtype=torch.uint8))
    found = panels(figure)
    assert list(found) == ["image", "prediction", "label", "epistemic", "aleatoric"]
    for name, values in (("epistemic", u.epistemic[1]), ("aleatoric", u.aleatoric[1])):
        np.testing.assert_allclose(shown(found[name]), values.double().clamp(*found[name].images[0].get_clim()))
    assert plots.save(figure, tmp_path / "maps.png").stat().st_size > 1000
    assert list(panels(plots.plot_maps(Uncertainty(prediction=u.prediction[:1], epistemic=u.epistemic[:1])))) == [
        "prediction",
        "epistemic",
    ]
    with pytest.raises(ValueError, match=r"maps must be of one image, got 2: draw u\[0\]"):
        plots.plot_maps(u)


def test_classes_have_the_colours_of_their_numbers_whatever_is_present() -> None:
    prediction, label = torch.tensor([[0, 2], [2, 21]]), torch.tensor([[0, 1], [255, 255]], dtype=torch.uint8)
    figure = plots.plot_maps({}, prediction=prediction, label=label, classes=["road", "sky", "car"])
    palette = [colour.lower() for colour in CLASS_COLOURS]
    assert len(set(palette)) == 20
    for name, expected in {
        "prediction": [[palette[0], palette[2]], [palette[2], palette[1]]],
        "label": [[palette[0], palette[1]], [GREY, GREY]],
    }.items():
        assert [[to_hex(colour) for colour in row] for row in shown(panels(figure)[name])] == expected
    assert names(figure) == {"road": palette[0], "sky": palette[1], "car": palette[2], "21": palette[1]}

    figure = plots.plot_maps({}, prediction=prediction, ignore=2)
    assert names(figure) == {"0": palette[0], "21": palette[1]}
    assert to_hex(shown(figure.axes[0])[0, 1]) == GREY


def test_colours_run_between_quantiles_and_the_bar_tells_what_is_beyond() -> None:
    scores = noise(50, 40)
    scores[0, :3] = torch.tensor([INF, -INF, 1e30])
    scores[1, :5] = torch.nan
    figure = plots.plot_maps({"robust": scores, "whole": noise(5, 5)}, tail=0.0)
    figure_robust = plots.plot_maps({"robust": scores}, tail=0.02)
    finite = scores[scores.isfinite()].double()
    image = panels(figure_robust)["robust"].images[0]
    expected = [float(finite.quantile(q)) for q in (0.02, 0.98)]
    assert image.get_clim() == pytest.approx(expected)
    drawn = np.ma.masked_invalid(image.get_array())
    assert drawn.mask.sum() == 5
    assert (drawn.min(), drawn.max()) == pytest.approx(expected)
    assert image.colorbar is not None
    assert image.colorbar.extend == "both"
    whole = panels(figure)["whole"].images[0]
    assert whole.get_clim() == pytest.approx((float(noise(5, 5).min()), float(noise(5, 5).max())))
    assert whole.colorbar is not None
    assert whole.colorbar.extend == "neither"


@pytest.mark.parametrize("value", [0.0, -7.0, 1e30, INF, -INF, float("nan")])
def test_maps_without_spread_are_drawn(value: float) -> None:
    figure = plots.plot_maps({"same": torch.full((4, 6), value)})
    low, high = figure.axes[0].images[0].get_clim()
    assert low < high
    figure.draw_without_rendering()
    rare = torch.zeros(100, 100)
    rare[0, 0] = 5.0  # both quantiles are 0
    assert plots.plot_maps({"rare": rare}).axes[0].images[0].get_clim() == (0.0, 5.0)


def test_numbers_of_prediction_and_label_share_their_colours() -> None:
    prediction, label = noise(8, 8).abs(), 3 * noise(4, 4, seed=1).abs()
    found = panels(plots.plot_maps({"epistemic": noise(8, 8)}, prediction=prediction, label=label, tail=0.0))
    low, high = float(min(prediction.min(), label.min())), float(max(prediction.max(), label.max()))
    for name in ("prediction", "label"):
        assert found[name].images[0].get_clim() == pytest.approx((low, high))
    assert found["prediction"].images[0].get_cmap() != found["epistemic"].images[0].get_cmap()


def test_every_form_of_an_image_is_the_same_picture() -> None:
    image = torch.randint(256, (3, 5, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    forms: list[Any] = [image, image[None] / 255, image.permute(1, 2, 0).numpy(), (image.double() / 255).numpy()]
    for form in forms:
        found = shown(plots.plot_maps({}, image=form).axes[0])
        np.testing.assert_allclose(found, image.permute(1, 2, 0) / 255, atol=1e-7)
    for grey in (image[0], image[:1]):
        found = shown(plots.plot_maps({}, image=grey).axes[0])
        np.testing.assert_allclose(found, (image[0] / 255)[..., None].expand(5, 7, 3), atol=1e-7)


@pytest.mark.parametrize(
    ("count", "columns", "rows"), [(1, 4, [1]), (4, 4, [4]), (5, 4, [3, 2]), (6, 4, [3, 3]), (3, 1, [1, 1, 1])]
)
@pytest.mark.parametrize("shape", [(8, 16), (9, 9), (16, 8)])
def test_panels_fill_rows_with_the_shape_of_the_image(
    count: int, columns: int, rows: list[int], shape: tuple[int, int]
) -> None:
    prediction = torch.arange(shape[0] * shape[1]).view(shape) % 19
    maps = {f"score {i}": noise(*shape, seed=i) for i in range(count - 1)}
    figure = plots.plot_maps(maps, prediction=prediction, columns=columns, classes=["a long name"] * 3 + ["b"])
    figure.draw_without_rendering()
    boxes = [ax.get_window_extent() for ax in panels(figure).values()]
    tops = [round(box.y1) for box in boxes]
    assert [tops.count(top) for top in sorted(set(tops), reverse=True)] == rows
    for box in boxes:
        assert box.height / box.width == pytest.approx(shape[0] / shape[1])
        assert box.width * box.height == pytest.approx(boxes[0].width * boxes[0].height)
    for one, two in pairwise(boxes):
        assert one.x1 < two.x0 or one.y0 > two.y1
    assert_nothing_is_cut(figure)


def test_bad_maps_are_refused() -> None:
    for wrong in (noise(2, 4, 4), noise(4), noise(0, 4)):
        with pytest.raises(ValueError, match=r"epistemic must be the map of one image, \(H, W\), got shape"):
            plots.plot_maps({"epistemic": wrong})
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.plot_maps({})
    with pytest.raises(ValueError, match="must not be called image, prediction or label, got label"):
        plots.plot_maps({"label": noise(4, 4)}, label=noise(4, 4))
    with pytest.raises(ValueError, match=r"tail must be at least 0 and below 0\.5, got 0\.5"):
        plots.plot_maps({"epistemic": noise(4, 4)}, tail=0.5)
    with pytest.raises(ValueError, match=r"image must be \(3, H, W\), .* got shape \(4, 5, 6\)"):
        plots.plot_maps({}, image=torch.zeros(4, 5, 6))
    for low, high in ((-1, 1), (0, 2), (0, float("nan"))):
        with pytest.raises(ValueError, match="image must hold bytes, or numbers from 0 to 1"):
            plots.plot_maps({}, image=torch.tensor([[low, high]], dtype=torch.float32))
