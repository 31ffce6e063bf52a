"""A file is for one model: another architecture is refused, other weights are warned of."""

import copy
import warnings

import pytest
import torch
from torch import nn

from hidden_uncertainty import LatentDensity


def test_a_file_is_for_one_model(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    LatentDensity(trained, "hidden").fit(data["train"]).save(path)
    other = copy.deepcopy(trained)
    other.hidden = nn.Linear(12, 7)
    with pytest.raises(ValueError, match=r"another model \(Net\): there, parameter 'hidden.weight' is \(6, 12\), here"):
        LatentDensity.load(path, other)
    for change in (lambda body: body[0].weight.data.mul_(1.5), lambda body: body[1].running_mean.add_(1)):
        other = copy.deepcopy(trained)
        change(other.body)
        with pytest.warns(UserWarning, match="weights are not those"):
            LatentDensity.load(path, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LatentDensity.load(path, torch.compile(copy.deepcopy(trained), backend="eager"))
        LatentDensity.load(path, nn.DataParallel(copy.deepcopy(trained)))
