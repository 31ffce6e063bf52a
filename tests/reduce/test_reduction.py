"""Fitted reductions and what they drop, against scikit-learn."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from torch import Tensor, nn

from hidden_uncertainty.reduce import Reduce, Reduction, ReductionFit
from hidden_uncertainty.reduce.pca import StreamingPCA


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fitted(reduce: Reduce, activation: Tensor, *, batch: int = 40, seed: int = 0) -> Reduction:
    fit = ReductionFit(reduce, "conv", seed=seed)
    fit.probe(activation[:3])
    while not fit.done:
        for part in activation.split(batch):
            fit.update(part)
        fit.end_pass()
    return fit.result()


@pytest.mark.parametrize(
    ("reduce", "activation", "error", "message"),
    [
        (
            Reduce("token"),
            torch.zeros(4, 7),
            ValueError,
            r"'fc': reduce='token' takes .*, got \(n, 7\)",
        ),
        (Reduce("token", token=9), torch.zeros(4, 3, 2), ValueError, r"token 9 is not among the 3 .* \(n, 3, 2\)"),
        (Reduce("token"), torch.zeros(4), ValueError, r"got \(n,\)"),
        (Reduce(), torch.tensor(1.0), ValueError, "samples first; got a single number"),
        (Reduce(), torch.zeros(4, 7, dtype=torch.long), TypeError, "layer 'fc': expected floating.* got torch.int64"),
        (Reduce(max_dim=1), torch.tensor([[1.0, math.nan]]), ValueError, "layer 'fc' gave 1 non-finite values"),
    ],
)
def test_activations_that_do_not_fit(reduce, activation, error, message):
    with pytest.raises(error, match=message):
        ReductionFit(reduce, "fc").update(activation)


@pytest.mark.parametrize("wide", [False, True])
def test_reduces_as_scikit_learn_does(wide, monkeypatch):
    if wide:
        monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 0)
    variances = torch.logspace(0, -5, 100)  # steep, so that the sketch finds the same components
    x = (draw(300, 100) * variances.sqrt() @ torch.linalg.qr(draw(100, 100, seed=1)).Q + 2).view(300, 4, 5, 5)
    reduction = fitted(Reduce(max_dim=6), x)
    reference = PCA(6, svd_solver="full").fit(x.flatten(1).double().numpy())
    expected = torch.from_numpy(reference.transform(x.flatten(1).double().numpy()))
    z, residual = reduction(x)
    assert z.shape == (300, 6)
    torch.testing.assert_close(z.double().abs(), expected.abs(), rtol=1e-2, atol=1e-3)
    dropped = x.flatten(1).double() - torch.from_numpy(reference.inverse_transform(expected.numpy()))
    torch.testing.assert_close(residual.double(), dropped.square().sum(1), rtol=1e-2, atol=0)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dim=st.integers(3, 40),
    keep=st.integers(1, 39),
    how=st.sampled_from(["flatten", "project"]),
)
def test_residual_is_the_squared_norm_of_what_is_dropped(seed, dim, keep, how):
    x = draw(30, dim, seed=seed)
    reduction = fitted(Reduce(how, max_dim=keep), x, seed=seed)
    z, residual = reduction(x)
    if keep >= dim:
        assert residual is None
        assert torch.equal(z, x)
        return
    back = reduction.mean + z @ reduction.basis.T
    torch.testing.assert_close(residual, (x - back).square().sum(1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", ["flatten", "project"])
def test_residual_as_a_column(how):
    x = draw(200, 30)
    reduction = fitted(Reduce(how, max_dim=5, residual=True), x)
    z, residual = reduction(x)
    assert z.shape == (200, 6)
    unit = reduction.unit
    torch.testing.assert_close((z[:, -1] / unit).exp(), residual / reduction.power**2 + reduction.floor)
    torch.testing.assert_close(unit**2, float(z[:, :-1].square().mean()), rtol=0.01, atol=0)
    assert 5e-4 < reduction.floor * reduction.power**2 / residual.mean() < 1e-2
    other = fitted(Reduce(how, max_dim=5, residual=True), x.flip(0), batch=30)  # in another order
    torch.testing.assert_close(other(x)[0], z, rtol=1e-5, atol=1e-5)
    inside = reduction.mean + torch.ones(1, 5) @ reduction.basis.T  # nothing to drop
    assert torch.isfinite(reduction(inside)[0]).all()


@pytest.mark.parametrize("how", ["flatten", "project"])
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e16])
def test_residual_columns_grow_with_the_layer(how, scale):
    x = draw(200, 30)
    one, other = (fitted(Reduce(how, max_dim=5, residual=True), rows)(rows)[0] for rows in (x, x * scale))
    other = other / scale
    torch.testing.assert_close(other[:, :-1], one[:, :-1], rtol=1e-4, atol=1e-4)
    shift = other[:, -1] - one[:, -1]  # a logarithm of another unit
    torch.testing.assert_close(shift, shift.mean().expand(200), rtol=0, atol=1e-4)


def test_residual_of_data_that_has_none():
    x = draw(100, 3) @ draw(3, 40, seed=1)  # the basis holds all of it; off it, the residual must stand out
    reduction = fitted(Reduce(max_dim=5, residual=True), x)
    assert reduction.kept == 3
    usual, strange = (reduction(rows)[0][:, -1] / reduction.unit for rows in (x, x + draw(100, 40, seed=2)))
    assert usual.max() - usual.min() < 1  # rounding alone, below the floor
    assert strange.min() > usual.max() + 3
    nothing = ReductionFit(Reduce("project", max_dim=2, residual=True), "dead")
    nothing.update(torch.zeros(4, 9))
    nothing.end_pass()
    assert torch.isfinite(nothing.result()(torch.zeros(4, 9))[0]).all()


@pytest.mark.parametrize(
    "reduce",
    [Reduce(max_dim=12, residual=True), Reduce(max_dim=None), Reduce("project"), Reduce("channels", max_dim=3)],
)
def test_narrow_layers_need_no_pass_and_no_buffers(reduce):
    x = draw(8, 3, 2, 2)
    fit = ReductionFit(reduce, "conv")
    assert fit.passes_left is None
    assert not fit.done
    fit.probe(x)
    assert fit.passes_left == 0
    reduction = fit.result()
    z, residual = reduction(x)
    assert residual is None
    assert not reduction.state_dict()
    assert torch.equal(z, reduce.flat(x))
    x.zero_()
    assert z.abs().min() > 0


def test_projection_is_orthonormal_and_random():
    x = draw(8, 50)
    first, again, other = (fitted(Reduce("project", max_dim=9), x, seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(first.basis.T @ first.basis, torch.eye(9), rtol=0, atol=1e-5)
    assert torch.equal(first.basis, again.basis)
    assert not torch.allclose(first.basis.abs(), other.basis.abs())
    assert not first.mean.any()


def test_several_layers_share_the_passes_in_the_hooks_of_one_model(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 20), nn.ReLU(inplace=True)
    )
    inputs = draw(60, 1, 8, 8)
    specs = {"0": Reduce(max_dim=6), "3": Reduce(max_dim=6), "4": Reduce()}
    monkeypatch.setattr(StreamingPCA, "EXACT_DIM", 100)  # so that '0' takes two passes, '3' one and '4' none
    fits = {name: ReductionFit(reduce, name) for name, reduce in specs.items()}

    def read(readers, batch) -> dict:
        seen = {}
        handles = [
            model.get_submodule(name).register_forward_hook(
                lambda module, args, output, name=name, reader=reader: seen.update({name: reader(output)})
            )
            for name, reader in readers.items()
        ]
        with torch.inference_mode():
            model(batch)
        for handle in handles:
            handle.remove()
        return seen

    read({name: fit.probe for name, fit in fits.items()}, inputs[:5])
    assert {name: fit.passes_left for name, fit in fits.items()} == {"0": 2, "3": 1, "4": 0}
    while not all(fit.done for fit in fits.values()):
        for batch in inputs.split(16):
            read({name: fit.update for name, fit in fits.items()}, batch)
        for fit in fits.values():
            fit.end_pass()
    reductions = {name: fit.result() for name, fit in fits.items()}
    found = read(reductions, inputs)

    with torch.no_grad():  # the same without hooks, before the in-place ReLUs touch anything
        conv = model[0](inputs)
        hidden = model[3](conv.relu().flatten(1))
    for name, activation in {"0": conv.flatten(1), "3": hidden}.items():
        best = PCA(6, svd_solver="full").fit(activation.double().numpy()).explained_variance_.sum()
        assert found[name][0].var(0).sum() > 0.99 * best
    assert found["0"][0].min() < 0
    torch.testing.assert_close(found["4"][0], hidden.relu())
    reductions["3"](hidden.requires_grad_())[0].sum().backward()  # buffers are no inference tensors
    assert hidden.grad is not None


def test_fits_without_a_probe():
    x = draw(50, 30)
    fit = ReductionFit(Reduce(max_dim=4), "conv")
    while not fit.done:
        fit.update(x)
        fit.end_pass()
    torch.testing.assert_close(fit.result()(x), fitted(Reduce(max_dim=4), x)(x), rtol=1e-3, atol=1e-4)
    assert fit.result() is fit.result()


def test_wrong_order_of_calls():
    fit = ReductionFit(Reduce(max_dim=4), "conv")
    fit.probe(draw(5, 30))
    with pytest.raises(RuntimeError, match="layer 'conv' needs more passes"):
        fit.result()
    with pytest.raises(RuntimeError, match="over layer 'conv' brought no samples"):
        fit.end_pass()


@pytest.mark.parametrize("how", ["flatten", "project"])
def test_another_size_is_an_error(how):
    x = draw(20, 6, 4, 4)
    reduction = fitted(Reduce(how, max_dim=5), x)
    with pytest.raises(
        ValueError, match=r"'conv' gave \(n, 6, 4, 4\) when fitted and \(n, 6, 3, 3\) now: give .* or pool"
    ):
        reduction(draw(2, 6, 3, 3))
    with pytest.raises(ValueError, match=r"and \(n, 96\) now"):  # as many numbers, in another order perhaps
        reduction(draw(2, 96))
    fit = ReductionFit(Reduce(how, max_dim=5), "conv")
    fit.update(x)
    with pytest.raises(ValueError, match=r"and \(n, 6, 3, 3\) now"):
        fit.update(draw(2, 6, 3, 3))


@pytest.mark.parametrize(
    ("reduce", "good", "bad"),
    [
        (Reduce("channels", max_dim=2), [(2, 6, 9), (2, 6, 1)], [(2, 4, 6), (2, 6), (2, 6, 4, 4)]),
        (Reduce("channels", pool="moments", max_dim=2), [(2, 6, 9), (2, 6, 1)], [(2, 4, 6), (2, 6), (2, 6, 4, 4)]),
        (Reduce("tokens", max_dim=2), [(2, 9, 4), (2, 1, 4)], [(2, 6, 5), (2, 4)]),
        (Reduce("token", token=5, max_dim=2), [(2, 9, 4)], [(2, 5, 4), (2, 6, 5), (2, 4)]),
    ],
)
def test_pooling_takes_any_size_of_what_it_pools(reduce, good, bad):
    reduction = fitted(reduce, draw(20, 6, 4))
    for shape in good:
        assert reduction(draw(*shape))[0].shape == (2, 2)
    for shape in bad:
        with pytest.raises(ValueError, match=r"gave \(n, 6, 4\) when fitted"):
            reduction(draw(*shape))


KINDS = {
    "narrow": Reduce(),
    "components": Reduce(max_dim=5),
    "residual": Reduce(max_dim=5, residual=True),
    "project": Reduce("project", max_dim=5, residual=True),
    "channels": Reduce("channels", max_dim=2),
    "token": Reduce("tokens", max_dim=2),
    "moments": Reduce("channels", pool="moments", max_dim=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rebuilt_from_its_configuration_and_state(kind):
    x = draw(40, 4, 3, 3)
    reduction = fitted(KINDS[kind], x)
    again = Reduction.from_config(json.loads(json.dumps(reduction.config())))
    again.load_state_dict(reduction.state_dict(), strict=True)
    for ours, theirs in zip(reduction(x), again(x), strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    assert again.config() == reduction.config()
    assert all(buffer.is_contiguous() for buffer in reduction.buffers())  # as files and other runtimes want them


@pytest.mark.parametrize("kind", KINDS)
def test_exports_for_any_batch(kind):
    x = draw(40, 4, 3, 3)
    reduction = fitted(KINDS[kind], x).eval()
    program = torch.export.export(reduction, (x,), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)
    for ours, theirs in zip(reduction(x[:7]), program.module()(x[:7]), strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def test_autocast_does_not_reach_the_projection():
    x = draw(100, 60)
    reduction = fitted(Reduce(max_dim=5), x)
    plain = reduction(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(reduction(x)[0], plain)


def test_huge_activations_saturate():
    x = draw(100, 60)
    reduction = fitted(Reduce(max_dim=5, residual=True), x)
    direction = x[:1]
    scores = [reduction(direction * scale) for scale in (1.0, 1e6, 1e12, 1e18, 1e30, 1e37)]
    assert all(torch.isfinite(part).all() for pair in scores for part in pair)
    residuals = torch.cat([residual for _, residual in scores])
    assert (residuals.diff() >= 0).all()
    assert torch.isnan(reduction(torch.full((1, 60), math.nan))[0]).all()


def test_float64_and_half_precision_activations():
    x = draw(100, 60)
    reduction = fitted(Reduce(max_dim=5), x)
    assert reduction(x.double())[0].dtype == torch.float32
    torch.testing.assert_close(reduction(x.half())[0], reduction(x)[0], rtol=0, atol=2e-2)
    assert reduction.double()(x)[0].dtype == torch.float64


def test_an_empty_batch():
    reduction = fitted(Reduce(max_dim=5), draw(100, 60))
    z, residual = reduction(torch.zeros(0, 60))
    assert (z.shape, residual.shape) == ((0, 5), (0,))


@pytest.mark.parametrize("shape", [("x",), (1.5,), (-1,), (True,)])
def test_a_shape_that_no_layer_has(shape: tuple) -> None:
    Reduction(Reduce(), "layer", (3, 0)).check()
    with pytest.raises(ValueError, match="is not the shape of a layer"):
        Reduction(Reduce(), "layer", shape).check()
