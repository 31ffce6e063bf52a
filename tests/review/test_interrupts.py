"""Ctrl-C at any moment."""

import random
import signal
import time

import pytest
import torch
from torch import nn

from found import found
from hidden_uncertainty import GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import MCDropout


def _state(model):
    """The model and the settings, but not hooks, of which those without an effect may stay until the next call."""
    matmul = [getattr(part.matmul, "fp32_precision", None) for part in (torch.backends.cuda, torch.backends.mkldnn)]
    flags = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_cache_enabled()
    modes = [module.training for module in model.modules()]
    tensors = [tensor.detach().tolist() for tensor in (*model.parameters(), *model.buffers())]
    random_state = torch.get_rng_state().numpy().tobytes()
    settings = {"flags": flags, "precision": torch.get_float32_matmul_precision(), "products": matmul}
    return {**settings, "modes": modes, "tensors": tensors, "random numbers": random_state}


def _hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def _interrupt(call, model, times):
    """What the first of many interrupts at random moments of a call that left something behind has changed."""

    def raise_interrupt(*_):
        raise KeyboardInterrupt

    draw, handler = random.Random(0), signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        call()
        start = time.perf_counter()
        for _ in range(5):
            call()
        usual = (time.perf_counter() - start) / 5
        before, came = _state(model), 0
        while came < times:
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, usual))
                call()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                came += 1
            changed = [name for name, value in _state(model).items() if value != before[name]]
            if not changed and _hooks(model):
                call()
                changed = ["hooks"] if _hooks(model) else []
            if changed:
                return changed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    return []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers of signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts while objects are freed
@pytest.mark.parametrize("method", ["LatentDensity", "MCDropout"])
@found(
    "B24",
    "thousands of interrupts at random moments of a call",
    "1 to 2 % leave hooks or modes, or gradients off, or TF32 set for good",
    "the model and all settings are as before; at most a hook stays that does nothing, until the next call",
)
def test_interrupts_leave_nothing_behind(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    x = torch.randn(1000, 4)
    if method == "MCDropout":
        detector = MCDropout(model, 2, task="classification")
    else:
        detector = LatentDensity(model, ["0", "2"], GaussianMixture(1), task="classification").fit([x])
    torch.set_float32_matmul_precision("high")
    try:
        left = _interrupt(lambda: detector(x[:2]), model, 1500)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_grad_enabled(True)
    assert left == []
