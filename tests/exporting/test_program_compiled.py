import shutil

import pytest
import torch
from torch import nn

from hidden_uncertainty import baselines
from hidden_uncertainty.exporting import program as made


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")
def test_a_compiled_scorer_gives_what_the_detector_gives(trained, data) -> None:
    detector = baselines.Mahalanobis(trained, "hidden").fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.05)
    before = [module.training for module in trained.modules()]
    fast = detector.compile()
    for x in (data["test"][0][0], data["far"][:1]):  # a hundred, and one
        u, found = detector(x), fast(x)
        assert torch.equal(u.prediction, found.prediction) and torch.equal(u.surprising, found.surprising)
        assert torch.allclose(u.epistemic, found.epistemic, rtol=1e-4)
        assert torch.allclose(u.p_value, found.p_value, atol=1.01 / 501)
    threshold = found.threshold
    detector.threshold(0.2)
    assert fast(x).threshold == threshold  # as it was when it was asked for
    for wrong in (x[:, :1], x.double(), torch.cat([x, x], 1)):  # compiled code does not look at sizes itself
        with pytest.raises(
            ValueError, match=r"compiled for torch.float32 \(1, 2\) on cpu; got .* detector.compile\(\)"
        ):
            fast(wrong)
    assert before == [module.training for module in trained.modules()]


class Scaled(nn.Module):
    """Two tensors and a number."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 3)

    def forward(self, x, weight, scale=1.0):
        return self.out(x * weight) * scale


def test_what_was_not_compiled_for_is_refused(monkeypatch) -> None:
    def uncompiled(program, package_path, **_):
        return program

    monkeypatch.setattr(made.torch._inductor, "aoti_compile_and_package", uncompiled)
    monkeypatch.setattr(made.torch._inductor, "aoti_load_package", lambda program: program.module())
    x, weight = torch.randn(40, 2), torch.rand(40, 2)
    detector = baselines.Energy(Scaled(), task="classification").fit([{"x": x, "weight": weight}])
    fast = detector.compile()
    for n in (5, 1, 40):
        u = detector(x[:n], weight=weight[:n], scale=2.0)
        assert torch.allclose(fast(x[:n], weight=weight[:n], scale=2.0).epistemic, u.epistemic)
    with pytest.raises(ValueError, match=r"weight=torch.float32 \(5, 2\) on cpu, scale=2.0; got .*, scale=3.0"):
        fast(x[:5], weight=weight[:5], scale=3.0)
    with pytest.raises(ValueError, match=r"got torch.float32 \(5, 2\) on cpu, weight=torch.float32 \(4, 2\)"):
        fast(x[:5], weight=weight[:4], scale=2.0)
    with pytest.raises(ValueError, match=r"compiled for torch.float32 .* got weight="):  # the same tensors, exchanged
        fast(weight=x[:5], x=weight[:5], scale=2.0)


def test_without_a_compiler_it_says_what_is_missing(trained, data, monkeypatch) -> None:
    def fail(*_, **__):
        raise OSError("no such file: g++")

    fast = baselines.Energy(trained).fit(data["train"]).compile()
    monkeypatch.setattr(made.torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(RuntimeError, match=r"no such file: g\+\+. compile\(\) needs a C\+\+ compiler"):
        fast(data["far"])
