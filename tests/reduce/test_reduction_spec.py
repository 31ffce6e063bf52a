"""The shape part of a reduction against numpy, and what `Reduce` refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hidden_uncertainty.reduce import Reduce


@pytest.mark.parametrize(
    ("reduce", "shape", "expected"),
    [
        (Reduce(), (4, 3, 2, 5), lambda x: x.reshape(4, -1)),
        (Reduce(), (4, 7), lambda x: x),
        (Reduce(), (4,), lambda x: x[:, None]),
        (Reduce("project"), (4, 3, 2), lambda x: x.reshape(4, -1)),
        (Reduce("channels"), (4, 3, 2, 5), lambda x: x.mean((2, 3))),
        (Reduce("channels"), (4, 3, 2), lambda x: x.mean(2)),
        (Reduce("channels"), (4, 3, 2, 5, 2), lambda x: x.mean((2, 3, 4))),
        (Reduce("channels"), (4, 7), lambda x: x),
        (Reduce("tokens"), (4, 3, 2), lambda x: x.mean(1)),
        (Reduce("tokens"), (4, 3, 2, 5), lambda x: x.mean((1, 2))),
        (Reduce("tokens"), (4, 7), lambda x: x),
        (Reduce("channels", pool="moments"), (4, 3, 2, 5), lambda x: np.hstack([x.mean((2, 3)), x.std((2, 3))])),
        (Reduce("channels", pool="moments"), (9, 40, 64, 64), lambda x: np.hstack([x.mean((2, 3)), x.std((2, 3))])),
        (Reduce("channels", pool="moments"), (4, 7), lambda x: x),
        (Reduce("tokens", pool="moments"), (4, 3, 2, 5), lambda x: np.hstack([x.mean((1, 2)), x.std((1, 2))])),
        (Reduce("token"), (4, 3, 2), lambda x: x[:, 0]),
        (Reduce("token", token=-1), (4, 3, 2), lambda x: x[:, -1]),
        (Reduce(normalise=True), (4, 7), lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
    ],
)
def test_flat_is_what_numpy_says(reduce, shape, expected):
    x = torch.randn(shape)
    flat = reduce.flat(x)
    np.testing.assert_allclose(flat.numpy(), expected(x.numpy()), rtol=1e-5, atol=1e-6)
    assert flat.shape[1] == reduce.width(shape)


@pytest.mark.parametrize("how", ["flatten", "channels", "tokens", "token", "project"])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_flat_is_promoted_and_never_shares_memory(how, given, kept):
    x = torch.randn(4, 3, 2).to(given)
    flat = Reduce(how).flat(x)
    before = flat.clone()
    assert flat.dtype == kept
    x.zero_()
    assert torch.equal(flat, before)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_moments_whatever_the_scale_and_however_far_from_zero(scale):
    x = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(0))
    reduce = Reduce("channels", pool="moments")
    torch.testing.assert_close(reduce.flat(x * scale) / scale, reduce.flat(x))
    far = reduce.flat(x + 1000)[:, 3:]  # a difference of squares would have no right digit
    torch.testing.assert_close(far, reduce.flat(x)[:, 3:], rtol=1e-3, atol=0)


@pytest.mark.parametrize(("how", "shape"), [("tokens", (2, 0, 5)), ("channels", (2, 5, 0, 4))])
def test_no_place_at_all_has_no_moments(how, shape):
    for pool, width in (("mean", 5), ("moments", 10)):
        flat = Reduce(how, pool=pool).flat(torch.zeros(shape))
        assert flat.shape == (2, width) and bool(flat.isnan().all())


def test_a_mean_of_half_precision_is_taken_in_float32():
    x = torch.tensor([1, 1 + 2**-10], dtype=torch.float16).repeat(35_000)[None, None]  # float16 has nothing between
    assert Reduce("channels").flat(x).item() == pytest.approx(1 + 2**-11, abs=1e-6)
    assert Reduce("tokens").flat(x.mT).item() == pytest.approx(1 + 2**-11, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"how": "mean"},
            r"^reduce \(or Reduce\(how=\)\) must be one of .* got 'mean'. For a mean, say",
        ),
        ({"how": "pca"}, r"got 'pca'\.$"),
        ({"max_dim": 0}, "max_dim must be a whole number of at least 1, or None to keep all, got 0"),
        ({"max_dim": 2.5}, "got 2.5"),
        ({"max_dim": True}, "got True"),
        ({"how": "project", "max_dim": None}, "needs max_dim"),
        ({"token": "cls"}, "token must be a whole number, got 'cls'"),
        ({"select": 1.5}, "select must be an index, a key, a tuple of these or None, got 1.5"),
        ({"select": ()}, r"a tuple of these or None, got \(\)"),
        ({"select": (0, (1,))}, r"a tuple of these or None, got \(0, \(1,\)\)"),
        ({"how": "tokens", "pool": "sum"}, "'moments', 'max', 'last'.* with how='tokens', got 'sum'"),
        ({"how": "channels", "pool": "max"}, r"\('mean', 'moments'\) with how='channels', got 'max'"),
        ({"how": "flatten", "pool": "moments"}, "with how='flatten', got 'moments'"),
        ({"mask": 1.0}, "mask must name an input of the network, or be its position or None, got 1.0"),
        ({"mask": False}, "position or None, got False"),
        ({"batch_axis": None}, "batch_axis must be a whole number, got None"),
        ({"residual": 1}, "residual must be True or False, got 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Reduce(**options)


def test_reduce_goes_through_json():
    token = Reduce("token", max_dim=7, token=-2, select="hidden", residual=True)
    nested = Reduce("tokens", select=("states", 1, 0), pool="last", mask="~padding", batch_axis=1)
    for reduce in (token, nested):
        assert Reduce.from_dict(json.loads(json.dumps(reduce.to_dict()))) == reduce
    old = {"how": "tokens", "max_dim": 7, "token": 0, "select": None, "residual": False}
    assert Reduce.from_dict(old) == Reduce("tokens", max_dim=7)
    with pytest.raises(ValueError, match="Reduce has no 'colour': it was written by another version"):
        Reduce.from_dict({"how": "flatten", "colour": 1})


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_length_one_whatever_the_scale(scale):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    x[3] = 0
    found = Reduce(normalise=True).flat(scale * x)
    torch.testing.assert_close(found, Reduce(normalise=True).flat(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.norm(dim=1), torch.tensor([1.0, 1, 1, 0, 1, 1]))
