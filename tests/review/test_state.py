"""What was fitted is replaced as a whole: no call sees a half of it."""

import threading

import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import Calibration, GaussianMixture, LatentDensity, Uncertainty


class Interrupted(nn.Module):
    """Something happens in another thread while it runs, once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.happens = None

    def forward(self, x: Tensor) -> Tensor:
        if self.happens is not None:
            thread, self.happens = threading.Thread(target=self.happens), None
            thread.start()
            thread.join()
        return self.out(torch.tanh(self.hidden(x)))


def _inputs(n: int, seed: int) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def _detector(model: nn.Module, layers: str | list[str] = "hidden") -> LatentDensity:
    return LatentDensity(model, layers, GaussianMixture(1), max_dim=2, task="classification")


@found(
    "A8",
    "a detector that is fitted again while another thread scores with it",
    "old reductions are mixed with new densities",
    "a call uses what was fitted when it began",
)
def test_a_call_uses_one_fit_throughout():
    model = Interrupted().eval()
    other = _detector(model).extract([_inputs(500, 2) @ torch.randn(4, 4)])
    detector = _detector(model).fit([_inputs(500, 1)])
    x = _inputs(50, 3)
    before = detector(x).epistemic
    model.happens = lambda: detector.fit_features(other)
    during = detector(x).epistemic
    assert torch.equal(during, before)
    assert not torch.equal(detector(x).epistemic, before)


@found(
    "A8",
    "a detector that is saved while another thread calibrates it",
    "the file has the new p-values of one layer, the old ones of another, and the old threshold",
    "the file holds all that was there before, or all that came after",
)
def test_a_file_holds_one_state(tmp_path, monkeypatch):
    model = Interrupted().eval()
    detector = _detector(model, ["hidden", "out"]).fit([_inputs(500, 1)], calibration=[_inputs(200, 2)])
    detector.threshold(0.05)
    x = _inputs(200, 3)
    before, fit, saved = detector(x), Calibration.fit, []

    def saving(self, *args):
        thread = threading.Thread(target=detector.save, args=(tmp_path / f"{len(saved)}.safetensors",))
        saved.append(thread)
        thread.start()
        thread.join()
        return fit(self, *args)

    monkeypatch.setattr(Calibration, "fit", saving)
    detector.calibrate([3 * _inputs(200, 4)])
    monkeypatch.undo()
    assert len(saved) > 1
    for number in range(len(saved)):
        u = LatentDensity.load(tmp_path / f"{number}.safetensors", model)(x)
        for name in ("hidden", "out"):
            assert torch.equal(u.layers[name].p_value, before.layers[name].p_value)
        assert torch.equal(u.surprising, u.p_value <= 0.05)


@found(
    "C34",
    "a threshold that another thread sets while a loader is scored",
    "the scores of the whole loader are lost: results differ in their threshold",
    "the loader is scored with the threshold that there was",
)
def test_a_threshold_set_while_a_loader_is_scored():
    detector = _detector(Interrupted().eval()).fit([_inputs(500, 1)], calibration=[_inputs(200, 2)])
    first = detector.threshold(0.05)

    def loader():
        for seed in range(4):
            yield _inputs(10, seed)
            thread = threading.Thread(target=detector.threshold, args=(0.1,))
            thread.start()
            thread.join()

    try:
        u: object = detector.predict(loader())
    except ValueError as error:
        u = error
    assert isinstance(u, Uncertainty) and u.threshold == first
