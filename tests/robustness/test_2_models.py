"""Unusual models."""

import copy

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


@pytest.fixture
def reference(trained, data):
    return scores(trained, data).epistemic


def scores(model, data):
    return LatentDensity(model, "hidden", GaussianMixture(2)).fit(data["train"]).predict(data["test"])


@tried("dynamically quantised layers", "scored like any other layer; close to the original")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised(trained, data, reference):
    if not torch.backends.quantized.supported_engines or torch.backends.quantized.engine == "none":
        pytest.skip("this build of torch has no quantised engine")
    model = torch.ao.quantization.quantize_dynamic(copy.deepcopy(trained).eval(), {nn.Linear}, dtype=torch.qint8)
    assert float(torch.corrcoef(torch.stack([scores(model, data).epistemic, reference]))[0, 1]) > 0.8


@tried("models in bfloat16 and float16, or under autocast", "densities are in float32; close to the original")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "autocast"])
def test_half(trained, data, reference, untouched, dtype):
    model = copy.deepcopy(trained)
    if dtype == "autocast":
        untouched(model)
        with torch.autocast("cpu", torch.bfloat16):
            u = scores(model, data)
    else:
        model.to(dtype)
        untouched(model)
        u = scores(model, {name: [(x.to(dtype), y) for x, y in data[name]] for name in ("train", "test")})
    assert u.epistemic.dtype == torch.float32
    assert float(torch.corrcoef(torch.stack([u.epistemic, reference]))[0, 1]) > 0.9
