import pytest
import torch
from scipy.stats import multivariate_normal

from hidden_uncertainty import LatentDensity
from hidden_uncertainty.baselines.mahalanobis import one_gaussian_a_class, one_gaussian_per_class


@pytest.mark.parametrize("condition", ["prediction", "label"])
def test_it_is_the_density_of_one_gaussian_per_class(trained, data, condition):
    detector = one_gaussian_per_class(trained, "hidden", shrinkage=None, ridge=1e-2, condition=condition)
    detector.fit(data["train"])
    x = data["test"][0][0]
    got = detector(x).epistemic
    trained.eval()
    inputs, labels = (torch.cat(parts) for parts in zip(*data["train"], strict=True))
    z = trained.hidden(trained.body(inputs)).detach().double()
    new = trained.hidden(trained.body(x)).detach().double().numpy()
    y = labels if condition == "label" else trained(inputs).argmax(1)
    density = 0.0
    variance = torch.cat([z[y == c] - z[y == c].mean(0) for c in range(3)]).square().mean()
    for c in range(3):
        rows = z[y == c]
        around = rows - rows.mean(0)
        covariance = around.T @ around / len(rows) + 1e-2 * variance * torch.eye(6)
        one = multivariate_normal(rows.mean(0).numpy(), covariance.numpy())
        density = density + len(rows) / len(z) * torch.from_numpy(one.pdf(new))
    assert torch.allclose(got.double(), -density.log(), rtol=1e-4, atol=1e-4)


def test_the_name_of_version_0_1_0(trained):
    with pytest.warns(DeprecationWarning, match="one_gaussian_a_class is deprecated: use one_gaussian_per_class"):
        assert isinstance(one_gaussian_a_class(trained, "hidden"), LatentDensity)
