"""Threads and forked processes."""

import logging
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from found import found
from hidden_uncertainty import GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import MCDropout


class Gate(nn.Module):
    """Does something when it is passed."""

    def __init__(self):
        super().__init__()
        self.passed = lambda: None

    def forward(self, x):
        self.passed()
        return x


def _inputs(n=1000):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


def _detector(model, layer):
    return LatentDensity(model, layer, GaussianMixture(1), task="classification").fit([_inputs()])


def _backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("part", [False, True])
@found(
    "A2",
    "two threads score models that share a backbone, or a model and its part, in training mode",
    "running statistics are changed, and almost all scores are wrong",
    "models that are in training mode take turns, whatever they share",
)
def test_models_that_share_modules(part):
    backbone, gates = _backbone(), (Gate(), Gate())
    first = nn.Sequential(backbone, nn.Linear(3, 3), gates[0])
    second = nn.Sequential(gates[1], backbone) if part else nn.Sequential(gates[1], backbone, nn.Linear(3, 3))
    detectors, x = (_detector(first, "1"), _detector(second, "1")), _inputs(20)
    expected = [detector(x).epistemic for detector in detectors]
    statistics = backbone[1].running_mean.clone()
    begun, inside, ended = threading.Event(), threading.Event(), threading.Event()
    gates[0].passed = lambda: (begun.set(), inside.wait(0.8))
    gates[1].passed = lambda: (inside.set(), ended.wait(5))

    def score(k):
        if k == 1:
            begun.wait(5)
        scores = detectors[k](x).epistemic
        if k == 0:
            ended.set()
        return scores

    with ThreadPoolExecutor(2) as pool:
        scores = list(pool.map(score, range(2)))
    assert torch.equal(backbone[1].running_mean, statistics)
    for one, other in zip(scores, expected, strict=True):
        torch.testing.assert_close(one, other)


@found(
    "A3",
    "a model that is in training mode is scored",
    "other threads run it in evaluation mode meanwhile, silently",
    "documented, and logged once per model: call `model.eval()` first",
)
def test_training_mode_is_noted(caplog):
    caplog.set_level(logging.INFO, logger="hidden_uncertainty")
    detector = _detector(nn.Sequential(_backbone(), nn.Linear(3, 3)), "0")
    detector(_inputs(3))
    said = [record.getMessage() for record in caplog.records if "model.eval()" in record.getMessage()]
    assert len(said) == 1


@found(
    "A3",
    "two threads score a model in evaluation mode, one of them for long",
    "the second waits for the first",
    "a model in evaluation mode is only read: threads score side by side",
)
def test_a_model_in_evaluation_mode_is_not_locked():
    gate = Gate()
    detector = _detector(nn.Sequential(_backbone(), gate, nn.Linear(3, 3)).eval(), "0")
    began, release, scored = threading.Event(), threading.Event(), threading.Event()

    def wait_once():
        if not began.is_set():
            began.set()
            release.wait(20)

    gate.passed = wait_once
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(detector, _inputs(3))
        began.wait(5)
        pool.submit(detector, _inputs(3)).add_done_callback(lambda _: scored.set())
        beside = scored.wait(2)
        release.set()
        slow.result()
    assert beside


@found(
    "A4",
    "two fits at once in two threads, and a warning later",
    "no later warning of the process is shown",
    "fits leave the filters of warnings alone",
)
def test_fits_at_once_silence_no_later_warning():
    begun, begun_too, ended = (threading.Event() for _ in range(3))

    class Waits(GaussianMixture):
        def fit(self, *args, **kwargs):
            if not begun.is_set():
                begun.set()
                begun_too.wait(5)
            else:
                begun_too.set()
                ended.wait(5)
            return super().fit(*args, **kwargs)

    def fit(k):
        if k == 1:
            begun.wait(5)
        LatentDensity(model, "1", Waits(1), task="classification").fit([_inputs()])
        if k == 0:
            ended.set()

    torch.manual_seed(0)
    model, heard = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval(), []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: heard.append(str(message))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(fit, range(2)))
        warnings.warn("still heard", stacklevel=1)
    assert "still heard" in heard


@found(
    "A10",
    "another thread draws random numbers while `MCDropout` scores",
    "it gets the same numbers again and again",
    "masks come from a generator of their own",
)
def test_dropout_leaves_the_generator_of_the_process_alone():
    gate, drawn = Gate(), []
    torch.manual_seed(0)
    method = MCDropout(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), gate, nn.Linear(8, 3)), task="classification")

    def draw():
        thread = threading.Thread(target=lambda: drawn.append(torch.rand(4)))
        thread.start()
        thread.join()

    gate.passed = draw
    for _ in range(3):
        method(_inputs(2))
    assert len(torch.stack(drawn).unique(dim=0)) == len(drawn)


@pytest.mark.parametrize("how", ["in place", "reassigned"])
@found(
    "A11",
    "networks with moving averages that a run updates in evaluation mode too",
    "scoring changes them",
    "they are put back after each run",
)
def test_moving_averages(how):
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            new = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            if how == "in place":
                self.mean.copy_(new)
            else:
                self.mean = new
            return x - self.mean

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Average(), nn.Linear(6, 3)).eval()
    detector, x = _detector(model, "1"), _inputs(20)
    scores = [detector(x).epistemic for _ in range(3)]
    assert model[1].mean.abs().max() == 0
    torch.testing.assert_close(scores[0], scores[2])


@found(
    "C34",
    "a threshold is set while another thread predicts",
    "an error: the parts of the result do not fit together",
    "each result is of what was fitted when it began",
)
def test_a_threshold_during_predict():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    detector = LatentDensity(model, "1", GaussianMixture(1), task="classification")
    detector.fit([_inputs()], calibration=[_inputs(200)])
    detector.threshold(0.5)
    expected = detector(_inputs(10)).surprising

    def batches():
        yield _inputs(10)
        with ThreadPoolExecutor(1) as pool:  # right between two batches
            pool.submit(detector.threshold, 0.05).result()
        yield _inputs(10)

    try:
        surprising: object = detector.predict(batches()).surprising
    except ValueError as error:
        surprising = error
    assert isinstance(surprising, torch.Tensor)
    assert torch.equal(surprising, expected.repeat(2))


FORKS = """
    import os, signal, threading, time
    import torch
    from torch import nn
    from hidden_uncertainty import GaussianMixture, LatentDensity

    class Gate(nn.Module):
        def forward(self, x):
            if threading.current_thread() is not threading.main_thread() and waits:
                inside.set()
                ended.wait(20)
            return x

    torch.set_num_threads(1)
    torch.manual_seed(0)
    waits, inside, ended = False, threading.Event(), threading.Event()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), Gate(), nn.Linear(6, 3))  # in training mode
    x = torch.randn(200, 4)
    detector = LatentDensity(model, "0", GaussianMixture(1), task="classification").fit([x])
    expected, statistics = detector(x).epistemic, model[1].running_mean.clone()

    def fork():
        child = os.fork()
        if child == 0:
            same = all(module.training for module in model.modules())
            same &= torch.allclose(detector(x).epistemic, expected) and torch.equal(model[1].running_mean, statistics)
            os._exit(0 if same else 3)
        for _ in range(1000):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hung"

    waits = True
    threading.Thread(target=detector, args=[x], daemon=True).start()
    inside.wait(20)
    # In the middle of a call, where our locks are held. While threads compute, a fork may also find a lock of torch
    # held: of children that run a bare network, without a detector, some then hang in its first product.
    print(fork(), fork(), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@found(
    "B23",
    "the process is forked while threads score",
    "one child in six hangs",
    "the child has locks of its own, and the model as the user left it",
)
def test_fork():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", textwrap.dedent(FORKS)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.split() == ["0", "0"], result.stderr[-2000:]
