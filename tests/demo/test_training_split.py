"""A part of a data set: indexed and cut into batches, images and labels stay together."""

from __future__ import annotations

import pytest
import torch

from hidden_uncertainty.demo import Split


def numbered(n: int) -> Split:
    return Split(torch.arange(n).float().reshape(n, 1, 1, 1), torch.arange(n))


@pytest.mark.parametrize(
    ("index", "expected"),
    [(slice(1, 3), [1, 2]), (torch.tensor([4, 0]), [4, 0]), (torch.arange(5) % 2 == 1, [1, 3])],
)
def test_images_and_labels_are_indexed_together(index: slice | torch.Tensor, expected: list[int]) -> None:
    some = numbered(5)[index]
    assert some.labels.tolist() == some.images.flatten().tolist() == expected


def test_batches_can_be_read_again_and_hold_everything_in_order() -> None:
    batches = numbered(7).batches(3)
    for _ in range(2):
        assert [labels.tolist() for _, labels in batches] == [[0, 1, 2], [3, 4, 5], [6]]
        assert [images.flatten().tolist() for images, _ in batches] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(("images", "labels"), [((5, 8, 8), (5,)), ((5, 1, 8, 8), (4,)), ((5, 1, 8, 8), (5, 1))])
def test_shapes_that_do_not_fit(images: tuple[int, ...], labels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected images \(n, C, H, W\) and labels \(n,\)"):
        Split(torch.zeros(images), torch.zeros(labels))
