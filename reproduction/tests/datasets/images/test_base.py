"""What a data set in memory must be."""

from __future__ import annotations

import pytest
import torch

from reproduction.datasets.images import Images

BYTES = torch.arange(0, 256, dtype=torch.uint8).view(4, 1, 8, 8)


def test_floats_go_from_zero_to_one() -> None:
    floats = Images(BYTES, None, digest="", official=True).floats()
    assert floats.dtype == torch.float32
    torch.testing.assert_close(floats.flatten(), torch.linspace(0, 1, 256))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (BYTES[0], None, r"got \(1, 8, 8\) of torch.uint8"),
        (BYTES.float(), None, "of torch.float32"),
        (BYTES, torch.arange(3), r"expected 4 labels of int64, got \(3,\)"),
        (BYTES, torch.arange(4.0), "of torch.float32"),
    ],
)
def test_what_does_not_fit(images: torch.Tensor, labels: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Images(images, labels, digest="", official=True)
