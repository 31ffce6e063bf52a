"""The digits of scikit-learn: each image in exactly one part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hidden_uncertainty.demo import Digits, digits


def parts(data: Digits) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(part.images, part.labels) for part in (data.train, data.calibration, data.test, data.left_out)]


@pytest.mark.parametrize("left_out", [(), (8, 9), (0, 3, 5)])
def test_every_digit_is_in_exactly_one_part(left_out: tuple[int, ...]) -> None:
    data = digits(left_out=left_out)
    images, labels = (torch.cat(both).numpy() for both in zip(*parts(data), strict=True))
    found = np.column_stack([labels, np.rint(images.reshape(len(images), 64) * 16)])
    bundled = load_digits()
    expected = np.column_stack([bundled.target, bundled.data])
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 1)


def test_images_are_upright() -> None:
    data, bundled = digits(), load_digits()
    known = {(16 * image).round().numpy().tobytes() for image in data.train.images[:, 0].double()}
    assert sum(image.tobytes() in known for image in bundled.images) == len(data.train)


def test_left_out_classes_are_all_there_and_nowhere_else() -> None:
    data = digits(left_out=(8, 9))
    assert set(data.left_out.labels.tolist()) == {8, 9}
    for part in (data.train, data.calibration, data.test):
        assert set(part.labels.tolist()) == set(range(8))
    assert len(digits().left_out) == 0


def test_shares() -> None:
    data = digits(calibration=0.1, test=0.5)
    assert (len(data.calibration), len(data.test)) == (180, 898)


def test_the_seed_decides_the_split() -> None:
    for one, other in zip(parts(digits(seed=3)), parts(digits(seed=3)), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert not torch.equal(digits(seed=3).test.labels, digits(seed=4).test.labels)


@pytest.mark.parametrize("left_out", [(10,), (-1,), range(9)])
def test_classes_that_cannot_be_left_out(left_out: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="left_out must name digits from 0 to 9 and leave at least two"):
        digits(left_out=left_out)


@pytest.mark.parametrize(("calibration", "test"), [(0.0, 0.2), (0.2, -0.1), (0.5, 0.5), (float("nan"), 0.2)])
def test_shares_that_leave_nothing(calibration: float, test: float) -> None:
    with pytest.raises(ValueError, match="must be positive and sum to less than 1"):
        digits(calibration=calibration, test=test)
