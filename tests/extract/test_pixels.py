"""How pixels are treated: options, labels to ignore, and the score of an image."""

import json

import pytest
import torch

from hidden_uncertainty import Pixels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": "input"}, "resolution must be one of"),
        ({"patch": 2}, "patch must be odd"),
        ({"per_class": 0}, "per_class must be a whole number of at least 1"),
        ({"share": 1.0}, "share is a share of pixels"),
        ({"ignore": ("void",)}, "ignore takes label values"),
        ({"ignore": float("nan")}, "labels of NaN are ignored anyway"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Pixels(**options)


def test_options_are_rebuilt_from_json():
    pixels = Pixels("latent", patch=3, per_class=40, reservoir=1000, ignore=(0, 255), share=0.1)
    assert Pixels.from_config(json.loads(json.dumps(pixels.config()))) == pixels


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.float32])
def test_labels_to_ignore_are_compared_as_numbers(dtype):
    """A byte of 255 is no -1, and the other way round."""
    highest = 255 if dtype == torch.uint8 else 127
    label = torch.tensor([0, 1, highest]).to(dtype)
    assert Pixels(ignore=highest).valid(label).tolist() == [True, True, False]
    assert Pixels(ignore=(highest - 256, 1)).valid(label).tolist() == [True, False, True]
    assert Pixels(ignore=None).valid(label).all()


@pytest.mark.parametrize("n", [7, 100, 1000])
def test_an_images_score_is_the_lowest_that_at_most_the_share_exceeds(n):
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(0)).double()
    for above in range(n):
        score = Pixels(share=above / n).image_score(scores)
        assert int((scores > score).sum()) == above
