"""Drawing pixels: how many of each class, uniformly, repeatably, and in bounded memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hidden_uncertainty import Pixels, Regression
from hidden_uncertainty.extract.sample import Reservoir, Sampler, draw, generator_of, random_keys
from hidden_uncertainty.model.tasks import Classification


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6), most=st.integers(1, 40), seed=st.integers(0, 9))
def test_at_most_so_many_of_each_group_and_those_of_the_lowest_keys(sizes: list[int], most: int, seed: int) -> None:
    group = torch.cat([torch.full((size,), g) for g, size in enumerate(sizes)])
    group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))]
    keys = random_keys(len(group), generator_of(seed, 0, group.device))
    drawn = draw(group, keys, torch.tensor(sizes), most)
    expected = {
        pixel
        for g in range(len(sizes))
        for pixel in sorted((group == g).nonzero()[:, 0].tolist(), key=lambda i: int(keys[i]))[:most]
    }
    assert set(drawn.tolist()) == expected and len(drawn) == len(expected)


@settings(max_examples=40, deadline=None)
@given(
    keys=st.lists(st.integers(0, 10**9), unique=True, min_size=1, max_size=80), size=st.integers(1, 30), data=st.data()
)
def test_a_reservoir_holds_the_rows_of_the_lowest_keys_however_they_come(
    keys: list[int], size: int, data: st.DataObject
) -> None:
    reservoir, start = Reservoir(size), 0
    while start < len(keys):
        stop = start + data.draw(st.integers(1, 20))
        part = torch.tensor(keys[start:stop])
        part = part[reservoir.wants(part)]
        reservoir.add(part, {"row": part * 2, "pair": torch.stack([part, -part], 1)})
        assert reservoir.held <= size + size // 4 + 20
        start = stop
    kept = torch.tensor(sorted(keys)[:size])
    found = reservoir.rows()
    assert torch.equal(found["row"], kept * 2) and torch.equal(found["pair"][:, 1], -kept)


def sample(pixels: Pixels, images: list[torch.Tensor], seed: int = 0) -> Sampler:
    sampler = Sampler(pixels, Classification(), 3, seed=seed)
    for number, image in enumerate(images):
        sampler.add(number, image, torch.ones_like(image, dtype=torch.bool), partial(place, 1000 * number))
    return sampler


def place(first: int, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"at": pixels + first}


def test_every_drawn_pixel_is_as_likely_to_stay() -> None:
    """Classes of very different size: a key that favoured the large ones would show."""
    image = torch.tensor([0] * 80 + [1] * 12 + [2] * 8)
    pixels, trials = Pixels(per_class=8, reservoir=12), 3000
    counts = torch.zeros(4, 100)
    for seed in range(trials):
        at = sample(pixels, [image] * 4, seed).rows()["at"]
        assert len(at) == 12
        counts[at // 1000, at % 1000] += 1
    # Each image gives 8 of each class, of which 12 / 96 stay.
    for found, size in zip(counts.split([80, 12, 8], dim=1), (80, 12, 8), strict=True):
        assert chisquare(found.flatten().numpy()).pvalue > 1e-3
        assert found.sum().item() == pytest.approx(trials * 4, rel=0.05), size
    assert chisquare(counts.sum(1).numpy()).pvalue > 1e-3


def test_population_counts_all_pixels_and_the_order_is_random() -> None:
    image = torch.tensor([0] * 700 + [1] * 200 + [2] * 100)
    sampler = sample(Pixels(per_class=50, reservoir=600), [image, image.flip(0), image[:800]])
    assert sampler.population().tolist() == [2100, 500, 200]
    at = sampler.rows()["at"]
    assert len(at) == 400 and len(at.unique()) == 400
    assert abs(torch.corrcoef(torch.stack([at.double(), torch.arange(400.0).double()]))[0, 1]) < 0.2


def test_numbers_keep_a_uniform_sample_of_all_pixels() -> None:
    sampler = Sampler(Pixels(per_class=10, reservoir=2000), Regression(), None, seed=0)
    for number, size in enumerate((500, 4500)):
        values = torch.full((size,), float(number))
        sampler.add(number, values, torch.ones(size, dtype=torch.bool), lambda p: {"at": p})
    found = sampler.population()
    assert len(found) == 2000 and len(sampler.rows()["at"]) == 20
    # 0.1 of all pixels are in the first image: deviation 0.005 of a sample of 2,000 without replacement.
    assert found.mean().item() == pytest.approx(0.9, abs=0.025)


def test_an_images_draw_depends_on_seed_and_number_alone_and_no_global_state() -> None:
    image = torch.arange(900) % 3
    before = torch.get_rng_state()
    one, two, other = (sample(Pixels(per_class=20), [image], seed).rows()["at"] for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two) and not torch.equal(one.sort().values, other.sort().values)


def test_labels_that_are_no_classes() -> None:
    sampler, valid = Sampler(Pixels(), Classification(), 3, seed=0), torch.ones(4, dtype=torch.bool)
    with pytest.raises(ValueError, match="the labels are 0 to 254, but the network has 3 classes"):
        sampler.add(0, torch.tensor([0, 1, 254, 2]), valid, lambda p: {})
    with pytest.raises(ValueError, match="whole numbers"):
        sampler.add(0, torch.rand(4), valid, lambda p: {})
    with pytest.raises(ValueError, match=r"no pixel counts: every label .* ignore \(255\)"):
        sampler.rows()
