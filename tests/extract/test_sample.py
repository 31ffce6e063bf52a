"""Drawing pixels: how many of each class, uniformly, repeatably, in any order, and in bounded memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hidden_uncertainty import Pixels, Regression
from hidden_uncertainty.extract.pixels import Reservoir, Sampler, share_evenly
from hidden_uncertainty.model.tasks import Classification


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 300), min_size=1, max_size=6), size=st.integers(6, 400))
def test_room_is_shared_evenly(counts: list[int], size: int) -> None:
    found = share_evenly(torch.tensor(counts), size).tolist()
    most = max(range(1, 301), key=lambda level: (sum(min(count, level) for count in counts) <= size, level))
    assert found == [min(count, most) for count in counts] and sum(found) <= size


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**9)), unique_by=lambda row: row[1], min_size=1),
    size=st.integers(3, 30),
    data=st.data(),
)
def test_a_reservoir_holds_the_rows_of_each_groups_lowest_keys_however_they_come(
    rows: list[tuple[int, int]], size: int, data: st.DataObject
) -> None:
    reservoir, start = Reservoir(size, 3), 0
    while start < len(rows):
        stop = start + data.draw(st.integers(1, 20))
        group, keys = torch.tensor(rows[start:stop]).T
        reservoir.add(group, keys, partial(columns, keys))
        assert reservoir.held <= size + size // 4
        start = stop
    room = share_evenly(torch.tensor([sum(g == c for g, _ in rows) for c in range(3)]), size).tolist()
    kept = sorted(key for c in range(3) for key in sorted(k for g, k in rows if g == c)[: room[c]])
    found = reservoir.rows()
    assert found["row"].tolist() == [2 * key for key in kept] and found["pair"][:, 1].tolist() == [-k for k in kept]
    most = torch.tensor([1, 0, 100])
    assert len(reservoir.rows(most)["row"]) == torch.tensor(room).minimum(most).sum()


def columns(keys: torch.Tensor, which: torch.Tensor) -> dict[str, torch.Tensor]:
    kept = keys[which]
    return {"row": kept * 2, "pair": torch.stack([kept, -kept], 1)}


def sample(pixels: Pixels, images: list[torch.Tensor], seed: int = 0) -> Sampler:
    sampler = Sampler(pixels, Classification(), 3, seed=seed)
    for number, image in enumerate(images):
        sampler.add(number, image, torch.ones_like(image, dtype=torch.bool), partial(place, 1000 * number))
    return sampler


def place(first: int, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"at": pixels + first}


def test_every_pixel_of_a_class_is_as_likely_to_be_drawn() -> None:
    """Classes, and their shares of the images, of very different size: a key that favoured any would show."""
    images = [torch.tensor([0] * 60 + [1] * 30 + [2] * 10), torch.tensor([0] * 100), torch.tensor([1] * 3 + [0] * 97)]
    pixels, trials = Pixels(per_class=4, reservoir=20), 400
    counts = torch.zeros(3, 100)
    for seed in range(trials):
        rows, _ = sample(pixels, images, seed).drawn()
        counts[rows["at"] // 1000, rows["at"] % 1000] += 1
    # A third of 20 for each; at most four per image that has the class, of which the last has one.
    for c, expected in enumerate((6, 6, 4)):
        found = torch.cat([counts[i][image == c] for i, image in enumerate(images)])
        assert chisquare(found.numpy()).pvalue > 1e-3
        assert found.sum().item() == trials * expected


def test_population_counts_all_pixels_and_the_order_is_random() -> None:
    image = torch.tensor([0] * 700 + [1] * 200 + [2] * 100)
    rows, population = sample(Pixels(per_class=50, reservoir=600), [image, image.flip(0), image[:800]]).drawn()
    assert population.tolist() == [2100, 500, 200]
    at = rows["at"]
    assert len(at) == 150 + 150 + 100 and len(at.unique()) == 400
    assert abs(torch.corrcoef(torch.stack([at.double(), torch.arange(400.0).double()]))[0, 1]) < 0.2


def test_numbers_keep_uniform_samples_of_all_pixels() -> None:
    sampler = Sampler(Pixels(per_class=400, reservoir=2000), Regression(), None, seed=0)
    for number, size in enumerate((500, 4500)):
        values = torch.full((size,), float(number))
        sampler.add(number, values, torch.ones(size, dtype=torch.bool), partial(place, 1000 * number))
    rows, population = sampler.drawn()
    assert len(population) == 2000 and len(rows["at"]) == 800 and list(rows) == ["at"]
    # 0.1 of all pixels are in the first image: deviations 0.005 and 0.01 of samples without replacement.
    assert population.mean().item() == pytest.approx(0.9, abs=0.025)
    assert (rows["at"] >= 1000).float().mean().item() == pytest.approx(0.9, abs=0.05)


def test_an_images_draw_depends_on_seed_and_digest_alone_and_no_global_state() -> None:
    image = torch.arange(900) % 3
    before = torch.get_rng_state()
    one, two, other = (sample(Pixels(per_class=20), [image], seed).drawn()[0]["at"] for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two) and not torch.equal(one.sort().values, other.sort().values)


def test_no_more_pixels_are_read_than_there_is_room_for() -> None:
    sampler, read = Sampler(Pixels(reservoir=100), Classification(), 3, seed=0), []

    def columns(pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        read.append(len(pixels))
        return {"at": pixels}

    for number in range(20):
        sampler.add(number, torch.arange(30_000) % 3, torch.ones(30_000, dtype=torch.bool), columns)
    # The sum over images of 100 / image, as of any reservoir: 360.
    assert max(read) <= 100 and sum(read) < 500


def test_labels_that_are_no_classes() -> None:
    sampler, valid = Sampler(Pixels(), Classification(), 3, seed=0), torch.ones(4, dtype=torch.bool)
    with pytest.raises(ValueError, match="the labels are 0 to 254, but the network has 3 classes"):
        sampler.add(0, torch.tensor([0, 1, 254, 2]), valid, lambda p: {})
    with pytest.raises(ValueError, match="whole numbers"):
        sampler.add(0, torch.rand(4), valid, lambda p: {})
    with pytest.raises(ValueError, match=r"no pixel counts: no image came, or every label .* ignore \(255\)"):
        sampler.drawn()
