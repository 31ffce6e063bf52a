"""StreamingPCA against scikit-learn, and the sums it is made of."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from torch import Tensor

from hidden_uncertainty.reduce.pca import Components, StreamingPCA

CPU = torch.device("cpu")


def fit(x: Tensor, keep: int, *, batch: int = 100, **options) -> Components:
    pca = StreamingPCA(x.shape[1], keep, **options)
    while pca.passes_left:
        for part in x.split(batch):
            pca.update(part)
        pca.end_pass()
    return pca.components


def draw(variances: Tensor, n: int, seed: int = 0) -> Tensor:
    """Samples (n, D) whose covariance has the given eigenvalues, in a random orientation."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(len(variances), len(variances), generator=generator)).Q
    return torch.randn(n, len(variances), generator=generator) * variances.sqrt() @ rotation.T


def captured(x: Tensor, basis: Tensor) -> float:
    """The part of the variance of x that lies in the span of the basis, in float64."""
    centred = x.double() - x.double().mean(0)
    return float((centred @ basis.double()).square().sum() / centred.square().sum())


def distance(a: Tensor, b: Tensor) -> float:
    """Between the projections on the spans of two orthonormal bases."""
    return float((a.double() @ a.double().T - b.double() @ b.double().T).abs().max())


@pytest.fixture(params=["exact", "sketched"])
def mode(request, monkeypatch) -> str:
    """Both methods on data small enough for a test."""
    if request.param == "sketched":
        monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 0)
    return request.param


SPECTRA = {
    "low rank and noise": torch.cat([torch.linspace(10, 1, 30), torch.full((470,), 0.01)]),
    "slow decay": 1 / torch.arange(1, 501.0),
}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_captures_what_scikit_learn_captures(spectrum, mode):
    x = draw(SPECTRA[spectrum], 800)
    ours = fit(x, 40)
    full = PCA(40, svd_solver="full").fit(x.double().numpy())
    randomised = PCA(40, svd_solver="randomized", random_state=0).fit(x.numpy())
    best = full.explained_variance_ratio_.sum()
    assert best * 1.000001 >= captured(x, ours.basis)
    assert captured(x, ours.basis) >= 0.995 * captured(x, torch.from_numpy(randomised.components_.T))
    torch.testing.assert_close(ours.mean.double(), torch.from_numpy(full.mean_), rtol=0, atol=1e-6)
    torch.testing.assert_close(float(ours.total), float(x.double().var(0).sum()), rtol=1e-5, atol=0)
    # The Nyström form never promises more than there is, and what it promises is there.
    assert (ours.variance.double() <= torch.from_numpy(full.explained_variance_) * 1.00001).all()
    assert float(ours.variance.sum() / ours.total) <= captured(x, ours.basis) * 1.00001


def test_exact_up_to_2048_dimensions_and_sketched_beyond():
    narrow, wide = StreamingPCA(2048, 16), StreamingPCA(2049, 16)
    assert (narrow.passes, wide.passes) == (1, 2)
    x = draw(torch.arange(1, 201.0) ** -2, 500)
    ours, full = fit(x, 20), PCA(20, svd_solver="full").fit(x.double().numpy())
    torch.testing.assert_close(ours.variance.double(), torch.from_numpy(full.explained_variance_), rtol=1e-5, atol=0)
    assert distance(ours.basis, torch.from_numpy(full.components_.T)) < 1e-5


def test_sketched_at_its_own_size():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2500, generator=generator) * torch.arange(1, 2501.0).rsqrt()
    ours = fit(x, 24)
    best = PCA(24, svd_solver="full").fit(x.double().numpy()).explained_variance_ratio_.sum()
    assert captured(x, ours.basis) > 0.99 * best


def test_orthonormal_and_ordered(mode):
    x = draw(torch.logspace(0, -6, 300), 500)
    basis, variance = fit(x, 60)[1:3]
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), rtol=0, atol=1e-5)
    assert (variance.diff() <= 0).all()
    torch.testing.assert_close((x @ basis).double().var(0), variance, rtol=1e-2, atol=0)


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, 399), max_size=6, unique=True), seed=st.integers(0, 1000), wide=st.booleans())
def test_batches_and_their_order_do_not_matter(cuts, seed, wide):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamingPCA, "EXACT_DIM", 0 if wide else 2048)
        x = draw(torch.arange(1, 121.0) ** -1.5, 400) + 5
        generator = torch.Generator().manual_seed(seed)
        pca = StreamingPCA(120, 10)
        while pca.passes_left:
            shuffled = x[torch.randperm(400, generator=generator)]
            for part in shuffled.tensor_split(sorted(cuts)):
                pca.update(part)
            pca.end_pass()
        ours, whole = pca.components, fit(x, 10, batch=400)
    torch.testing.assert_close(ours.mean, whole.mean)
    torch.testing.assert_close(ours.variance, whole.variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(ours.total, whole.total, rtol=1e-5, atol=0)
    # With their signs; where the data are sketched, products are in float32.
    torch.testing.assert_close(ours.basis, whole.basis, rtol=0, atol=1e-3 if wide else 1e-6)


def test_a_first_batch_unlike_the_rest(monkeypatch):
    monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 0)
    x = draw(torch.arange(1, 121.0) ** -1.5, 400)
    x[:50] += 3
    sorted_, mixed = (
        fit(part, 10, batch=50) for part in (x, x[torch.randperm(400, generator=torch.Generator().manual_seed(0))])
    )
    torch.testing.assert_close(sorted_.variance, mixed.variance, rtol=5e-3, atol=0)
    assert distance(sorted_.basis, mixed.basis) < 5e-3


def test_chunks_of_a_batch_do_not_matter(mode, monkeypatch):
    x = draw(torch.arange(1, 121.0) ** -1.5, 300)
    whole = fit(x, 10)
    monkeypatch.setattr(StreamingPCA, "CHUNK_ENTRIES", 120 * 7)
    assert distance(fit(x, 10).basis, whole.basis) < 1e-4


def test_a_mean_far_from_zero(mode):
    near = draw(torch.arange(1, 151.0) ** -1.0, 500)
    near /= near.std(0)
    far = near + 1e3  # what float32 keeps of `near` is the truth to find
    truth = PCA(10, svd_solver="full").fit(far.double().numpy())
    ours = fit(far, 10)
    assert captured(far, ours.basis) > 0.99 * truth.explained_variance_ratio_.sum()
    torch.testing.assert_close(ours.total.double(), far.double().var(0).sum(), rtol=1e-5, atol=0)
    assert (ours.variance.double() <= torch.from_numpy(truth.explained_variance_) * 1.0001).all()


def test_one_direction_that_dwarfs_the_others(mode):
    x = draw(torch.cat([torch.tensor([1e6]), 1 / torch.arange(1, 300.0)]), 500)
    truth = torch.from_numpy(PCA(30, svd_solver="full").fit(x.double().numpy()).components_.T)
    rest, best = 1 - captured(x, fit(x, 30).basis), 1 - captured(x, truth)
    assert rest < 1.03 * best


def test_constant_features_get_no_weight(mode):
    x = draw(torch.ones(40), 200)
    x = torch.cat([x, torch.full((200, 160), 0.1)], dim=1)
    ours = fit(x, 50)
    assert ours.basis.shape == (200, 40)
    assert ours.basis[40:].abs().max() < 1e-5


@pytest.mark.parametrize(("n", "rank"), [(12, 11), (2, 1), (500, 25)])
def test_no_more_components_than_the_rank(n, rank, mode):
    x = draw(torch.cat([torch.linspace(3, 1, 25), torch.zeros(175)]), n) + 1
    ours = fit(x, 60)
    assert ours.basis.shape == (200, rank)
    torch.testing.assert_close(ours.basis.T @ ours.basis, torch.eye(rank), rtol=0, atol=1e-5)
    assert captured(x, ours.basis) > 1 - 1e-6


LAST_DIGIT = 1e3 + 2**-14 * torch.randint(2, (50, 90), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("x", [torch.full((50, 90), 0.1), torch.zeros(50, 90), torch.arange(90.0)[None], LAST_DIGIT])
def test_constant_data_is_an_error(x, mode):
    with pytest.raises(ValueError, match=r"is constant: .* samples gave the same 90 numbers"):
        fit(x, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floating_types(dtype, mode):
    x = draw(torch.arange(1, 101.0) ** -1.5, 300).to(dtype)
    ours, same = fit(x, 8), fit(x.float(), 8)
    assert ours.basis.dtype == ours.mean.dtype == torch.float32
    assert distance(ours.basis, same.basis) < 1e-4


def test_processes_that_share_the_data_find_what_one_does(mode):
    x = draw(torch.arange(1, 121.0) ** -1.5, 400)
    x[:100] += 3  # so that the shares have different means
    alone = fit(x, 10)
    shares, barrier, slots = [x[:100], x[100:]], threading.Barrier(2), [None, None]
    found: list[Components] = [None, None]

    def work(rank: int) -> None:
        def all_sum(tensor: Tensor) -> Tensor:
            slots[rank] = tensor.clone()
            barrier.wait(20)
            total = slots[0] + slots[1]
            barrier.wait(20)
            return total

        pca = StreamingPCA(120, 10)
        while pca.passes_left:
            for part in shares[rank].split(64):
                pca.update(part)
            pca.end_pass(all_sum)
        found[rank] = pca.components

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for part in found:
        torch.testing.assert_close(part.mean, alone.mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(part.total, alone.total, rtol=1e-5, atol=0)
        torch.testing.assert_close(part.variance, alone.variance, rtol=1e-3, atol=0)
        assert distance(part.basis, alone.basis) < 1e-3


def test_what_is_held_does_not_grow_with_the_data():
    pca = StreamingPCA(3000, 16)

    def held() -> int:
        return sum(value.numel() for value in vars(pca).values() if isinstance(value, Tensor))

    x = torch.randn(64, 3000, generator=torch.Generator().manual_seed(0))
    pca.update(x)
    first = held()
    assert first < 2.1 * 3000 * pca.sketch
    for _ in range(3):
        pca.update(x)
    pca.end_pass()
    pca.update(x)
    assert held() == first


@pytest.mark.parametrize(("dim", "keep", "sketch"), [(16_384, 512, 1024), (65_536, 512, 549), (200_000, 512, 544)])
def test_the_sketch_is_as_wide_as_memory_allows(dim, keep, sketch):
    assert StreamingPCA(dim, keep).sketch == sketch


def test_inference_mode_leaves_ordinary_tensors(mode):
    x = draw(torch.ones(60), 100)
    with torch.inference_mode():
        pca = StreamingPCA(60, 4)
        pca.update(x.clone())
    pca.update(x)
    pca.end_pass()
    while pca.passes_left:
        with torch.inference_mode():
            pca.update(x.clone())
            pca.end_pass()
    assert not any(part.is_inference() for part in pca.components)


def test_same_seed_same_result_and_the_global_generator_is_left_alone(monkeypatch):
    monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 0)
    x = draw(1 / torch.arange(1, 201.0), 300)
    before = torch.get_rng_state()
    first, again, other = fit(x, 8, seed=3), fit(x, 8, seed=3), fit(x, 8, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.basis, again.basis)
    assert not torch.equal(first.basis, other.basis)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("when", [0, 1])
def test_non_finite_values_are_counted(bad, when, mode):
    x = draw(torch.ones(60), 64)
    pca = StreamingPCA(60, 4, name="layer 'conv'")
    if when:
        pca.update(x)
    spoiled = x[:32].clone()
    spoiled[0, :3] = bad
    with pytest.raises(ValueError, match=r"layer 'conv' gave 3 non-finite values .* in a batch of 32"):
        pca.update(spoiled)
    while pca.passes_left:  # nothing of the bad batch stayed
        pca.update(x)
        pca.end_pass()
    assert all(torch.isfinite(part).all() for part in pca.components)


def test_squares_that_overflow_are_an_error(monkeypatch):
    monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 0)
    pca = StreamingPCA(60, 4)
    pca.update(draw(torch.ones(60), 20))
    with pytest.raises(ValueError, match=r"values up to 3\.0e\+30 in a batch of 2"):
        pca.update(torch.full((2, 60), 3e30))


def test_wrong_use():
    pca = StreamingPCA(5, 2)
    with pytest.raises(ValueError, match=r"must be \(n, 5\), got \(3, 4\)"):
        pca.update(torch.zeros(3, 4))
    pca.update(torch.zeros(0, 5))
    with pytest.raises(RuntimeError, match="pass 1 of 1 over x brought no samples"):
        pca.end_pass()
    assert pca.components is None
    pca.update(torch.eye(5))
    pca.end_pass()


def test_a_generator_as_loader_is_an_error(monkeypatch):
    monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 0)
    pca = StreamingPCA(60, 4)
    pca.update(draw(torch.ones(60), 20))
    pca.end_pass()
    with pytest.raises(
        RuntimeError, match="pass 2 of 2 over x brought no samples: the loader must be iterable 2 times"
    ):
        pca.end_pass()


def test_autocast_does_not_reach_the_products(mode):
    x = draw(torch.arange(1, 101.0) ** -1.5, 300)
    plain = fit(x, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert distance(fit(x, 8).basis, plain.basis) < 1e-6
