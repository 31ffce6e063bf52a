import shutil

import pytest
import torch

from hidden_uncertainty import baselines
from hidden_uncertainty.exporting import compiling


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
    assert before == [module.training for module in trained.modules()]


def test_without_a_compiler_it_says_what_is_missing(trained, data, monkeypatch) -> None:
    def fail(*_, **__):
        raise OSError("no such file: g++")

    fast = baselines.Energy(trained).fit(data["train"]).compile()
    monkeypatch.setattr(compiling.torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(RuntimeError, match=r"no such file: g\+\+. compile\(\) needs a C\+\+ compiler"):
        fast(data["far"])
