"""Monitors against brute force: all orders of a few scores, a plain loop over bets and starts, and simulation."""

from __future__ import annotations

import itertools
import logging
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from hidden_uncertainty import Calibration, Detector, GaussianMixture, LatentDensity, LayerScores, Monitor, Uncertainty
from hidden_uncertainty.deployment import monitor as module
from hidden_uncertainty.io import Unusable, write


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(one: Monitor, other: Monitor) -> bool:
    numbers = all(getattr(one, name) == getattr(other, name) for name in module.NUMBERS)
    return numbers and all(torch.equal(getattr(one, name), getattr(other, name)) for name in module.TENSORS)


def close(one: Monitor, other: Monitor) -> None:
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)
    assert (one.inputs, one.alarm, one.since) == (other.inputs, other.alarm, other.since)
    torch.testing.assert_close(one.counts, other.counts)


@pytest.mark.parametrize("blocks", [None, (3,), (1, 2), (2, 1)])
def test_without_drift_the_evidence_is_one_on_average(blocks):
    """Over all orders of six scores, of which three calibrate, as exchangeable means; exactly."""
    found = []
    for order in (order for order in itertools.permutations(range(6)) if order[0] < order[1] < order[2]):
        scores = torch.tensor(order).double()
        monitor = Monitor(scores[:3])
        stream = scores[3:]
        if blocks is None:
            steps = [monitor.log_evidence]
            for score in stream:
                monitor.update(score.reshape(1))
                steps.append(monitor.log_evidence)
            found.append(steps)
        else:
            worker = Monitor(scores[:3], seed=1)
            for part in stream.split(list(blocks)):
                worker.update(part)
                monitor.update(worker)
                worker.reset()
            found.append([monitor.log_evidence])
    means = torch.tensor(found, dtype=torch.float64).exp().mean(0)
    torch.testing.assert_close(means, torch.ones_like(means), rtol=0, atol=1e-12)
    assert torch.tensor(found).exp().std(0)[-1] > 0.1  # and not because nothing was staked


def test_bets_against_a_plain_loop():
    """Every bet from every start, multiplied up one by one."""
    n, calibration, stream = 40, normal(40), torch.cat([normal(30, seed=1), normal(30, seed=2) + 2])
    monitor = Monitor(calibration, false_alarm=0.01)
    monitor.update(stream)
    edges = monitor.edges.tolist()
    sizes = monitor.sizes.tolist()
    assert sum(sizes) == n + 1 and len(edges) == len(sizes) - 1
    inside = np.histogram(calibration.double().numpy(), [-math.inf, *edges, math.inf])[0]
    assert np.abs(inside - sizes).max() <= 1  # each size counts gaps
    bets = module._bets(monitor.sizes).tolist()
    J = len(bets)
    running = [(0, j, 0.5 / J, 1.0) for j in range(J)]  # the first ones are from the start
    urn, left, total, likely = list(sizes), 0.5, [], []
    for t, score in enumerate(stream.tolist()):
        place = sum(score > edge for edge in edges)
        after = 0.5 * (1 + (t + 1) / 1000) ** -0.2
        running += [(t, j, (left - after) / J, 1.0) for j in range(J)]
        left = after
        factor = [bet[place] / (sum(map(math.prod, zip(urn, bet, strict=True))) / sum(urn)) for bet in bets]
        first = [(sizes[place] * bet[place] + urn[place] - sizes[place]) / urn[place] for bet in bets]
        factors = first + factor * (t + 1)
        running = [
            (start, j, worth * f, ratio * f) for (start, j, worth, ratio), f in zip(running, factors, strict=True)
        ]
        urn[place] += 1
        total.append(left + sum(worth for *_, worth, _ in running))
        likely.append(max(running, key=lambda one: one[-1])[0])
    assert monitor.evidence == pytest.approx(total[-1], rel=1e-9)
    assert monitor.p_value == pytest.approx(1 / max(total), rel=1e-9)
    alarm = next(t for t, value in enumerate(total) if value >= 100)
    assert monitor.alarm == alarm + 1 > 30 and monitor.since == likely[alarm] > 20


def test_every_bet_is_a_distribution():
    for n in (1, 2, 3, 10, 500, 10**7):
        sizes = module._sizes(n)
        assert sizes.sum() == n + 1 and bool((sizes >= 1).all())
        bets = module._bets(sizes)
        torch.testing.assert_close(bets @ sizes / (n + 1), torch.ones(16).double())
        assert float(bets.min()) >= module.HEDGE


def test_batches_make_no_difference():
    calibration, stream = normal(200), torch.cat([normal(500, seed=1), normal(200, seed=2) - 1])
    whole, parts = Monitor(calibration), Monitor(calibration)
    whole.update(stream)
    for part in stream.split(37):
        parts.update(part)
    assert whole.drifted and abs(whole.since - 500) < 40
    close(whole, parts)


def test_rows_beyond_those_worked_on_at_once(monkeypatch):
    calibration, stream = normal(200), normal(300, seed=1)
    whole, parts = Monitor(calibration), Monitor(calibration)
    whole.update(stream)
    monkeypatch.setattr(module, "ROWS", 64)
    parts.update(stream)
    close(whole, parts)


def test_counts_of_workers():
    """One by one they are the stream itself; within a block the order does not matter."""
    calibration, stream = normal(100), normal(60, seed=1) + 0.5
    direct, central = Monitor(calibration), Monitor(calibration)
    direct.update(stream)
    worker = Monitor(calibration, seed=7)
    for score in stream:
        worker.update(score.reshape(1))
        central.update(worker)
        worker.reset()
    close(direct, central)
    found = []
    for order in (stream, stream.flip(0), stream.sort().values):
        central.reset()
        worker.reset()
        worker.update(order)
        central.update(worker)
        found.append(central.log_evidence)
    assert found[0] == pytest.approx(found[1]) == pytest.approx(found[2])
    before = central.log_evidence
    worker.reset()
    central.update(worker)
    assert central.log_evidence == before and central.inputs == 60
    with pytest.raises(ValueError, match="same calibration"):
        central.update(Monitor(normal(100, seed=5)))


def test_workers_find_together_what_none_finds_alone():
    calibration, streams = normal(2000), normal(8, 300, seed=1) + 0.35
    central = Monitor(calibration)
    workers = [Monitor(calibration, seed=1 + i) for i in range(8)]
    alone = [Monitor(calibration).update(stream[:60]) for stream in streams]
    for minute in range(6):
        for worker, stream in zip(workers, streams, strict=True):
            worker.update(stream[10 * minute : 10 * minute + 10])
            central.update(worker)
            worker.reset()
    assert central.drifted and not any(alone)


def test_false_alarms_by_simulation():
    """Few calibration scores and long streams: with the calibration set taken for the truth, most would be alarms."""
    alarms, plain = 0, 0
    for seed in range(100):
        scores = normal(40 + 2000, seed=seed)
        alarms += Monitor(scores[:40], false_alarm=0.05).update(scores[40:])
        naive = Monitor(scores[:40], false_alarm=0.05)
        naive.sizes = naive.sizes * 1e12
        plain += naive.update(scores[40:])
    assert alarms <= 14  # more would come once in 10,000 at 5 %
    assert plain > 40


@pytest.mark.parametrize(
    "draw",
    [
        lambda n, g: torch.zeros(n),
        lambda n, g: torch.randint(3, (n,), generator=g).float(),
        lambda n, g: torch.where(torch.rand(n, generator=g) < 0.6, math.inf, torch.rand(n, generator=g)),
        lambda n, g: torch.where(torch.rand(n, generator=g) < 0.7, -math.inf, 1e30),
    ],
    ids=["constant", "whole", "infinite", "two"],
)
def test_ties_raise_no_alarm(draw):
    alarms = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        calibration = draw(100, generator)
        monitor = Monitor(calibration, false_alarm=0.1, seed=seed)
        alarms += monitor.update(draw(1000, generator))
        assert int((monitor.counts == 0).sum()) <= len(monitor.counts) // 2  # they are spread, as ranks are
    assert alarms <= 15  # more would come once in 1,000 at 10 %


def test_each_calibration_has_its_own_order_of_equal_scores():
    """One order for all would be unlucky for all: with 100 scores of three values, 7.5 % alarms instead of 5 %."""
    scores = torch.arange(100.0) % 3 + 1
    edges = Monitor(scores).edges
    assert edges.equal(Monitor(scores.flip(0), seed=7).edges)
    assert not edges.equal(Monitor(2 * scores).edges / 2)


def test_ties_that_rounding_has_moved():
    """Scores of few values, all a little higher than in the batches of the calibration."""
    values = torch.randint(5, (2500,), generator=torch.Generator().manual_seed(0)).double() + 3
    again = (values[:300], values[:300] * (1 + 1e-7))
    monitor = Monitor(Calibration().fit(values[:500], again))
    assert not monitor.update(values[500:] * (1 + 1e-7))


def test_infinite_scores_are_the_highest():
    monitor = Monitor(normal(200))
    assert monitor.update(torch.full((10,), math.inf))
    assert int(monitor.counts[-1]) == 10
    monitor.reset()
    monitor.update(torch.full((10,), -math.inf))
    assert int(monitor.counts[0]) == 10
    with pytest.raises(ValueError, match=r"1 of 2 scores are NaN"):
        monitor.update(torch.tensor([math.nan, 1.0]))
    assert monitor.inputs == 10


@pytest.mark.parametrize(
    ("change", "within"),
    [
        (lambda x: x + 1, 100),
        (lambda x: x - 1, 100),
        (lambda x: x * 0.5, 150),
        (lambda x: x * 2, 150),
        (lambda x: torch.full_like(x, 0.3), 150),
        (lambda x: torch.where(torch.arange(len(x)) % 5 == 0, x + 4, x), 200),
    ],
    ids=["higher", "lower", "narrower", "wider", "frozen", "a fifth"],
)
def test_kinds_of_drift(change, within):
    monitor = Monitor(normal(500))
    assert not monitor.update(normal(2000, seed=1))
    assert monitor.update(change(normal(500, seed=2)))
    assert 2000 < monitor.alarm <= 2000 + within
    assert abs(monitor.since - 2000) <= within


def test_p_values_are_scores_too():
    calibration, stream = normal(300), normal(400, seed=1) + 0.3
    scores, p = Monitor(calibration), Monitor(-torch.arange(1.5, 301) / 301)
    scores.update(stream)
    p.update(-Calibration().fit(calibration).p_value(stream))
    torch.testing.assert_close(scores.counts, p.counts)
    assert scores.log_evidence == pytest.approx(p.log_evidence)


def test_what_a_detector_returns():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    detector = LatentDensity(model, ["0", "1"], GaussianMixture(1), task="classification")
    with pytest.raises(RuntimeError, match="nothing to compare"):
        Monitor.of(detector)
    detector.fit([normal(600, 4)], calibration=[normal(300, 4, seed=1)])
    monitor = Monitor.of(detector, false_alarm=0.05)
    assert monitor.samples == 300 and monitor.false_alarm == 0.05
    assert not monitor.update(detector(normal(200, 4, seed=2)))
    broken = normal(20, 4, seed=3)
    broken[:, 0] = math.nan
    with pytest.warns(UserWarning, match="NaN"):
        assert monitor.update(detector(broken))
    layer = Monitor(detector.head.terms["0"].calibration)
    u = detector(normal(50, 4, seed=4) * 5)
    assert isinstance(u.layers["0"], LayerScores) and layer.update(u.layers["0"].epistemic)
    with pytest.warns(UserWarning, match="part of the training data"):
        detector.fit([normal(600, 4)], holdout=0.3)
    with pytest.warns(UserWarning, match="look like drift"):
        Monitor.of(detector)


def test_what_is_taken_and_what_is_not():
    scores = normal(100)
    one, other = Monitor(scores), Monitor(scores.numpy())
    assert same(one, other)
    assert not one.update(torch.zeros(0)) and one.inputs == 0 and one.evidence == 1
    assert not one.update([]) and one.inputs == 0
    one.update(scores.half())
    other.update(scores.half().float().numpy())
    assert same(one, other)
    one.update([0.5, 1.5])
    with torch.inference_mode():
        other.update([0.5, 1.5])
        assert same(one, other)
        other.reset()
    assert not other.update([0.5])
    other = Monitor(scores)
    other.update(torch.tensor([0.5], requires_grad=True))
    with torch.device("meta"):  # whatever the default device is
        third = Monitor(scores.numpy())
        third.update([0.5])
    assert same(other, third)
    maps = Uncertainty(prediction=torch.zeros(2, 3, 3), epistemic=torch.zeros(2, 3, 3))
    for wrong in (maps, torch.tensor(1.0)):
        with pytest.raises(ValueError, match="one score per input"):
            one.update(wrong)
    for rate in (0, 1, math.nan):
        with pytest.raises(ValueError, match="false_alarm"):
            Monitor(scores, rate)
    with pytest.raises(ValueError, match="one score per input"):
        Monitor(torch.zeros(0))
    with pytest.raises(ValueError, match="no calibration scores"):
        Monitor(Calibration())


def test_a_long_way(tmp_path):
    """Evidence that overflows, and counts of years."""
    monitor = Monitor(normal(100))
    monitor.update(torch.full((3000,), 50.0))
    assert monitor.log_evidence > 200 and math.isfinite(monitor.evidence) and monitor.p_value >= 0
    worker = Monitor(normal(100), seed=1)
    worker.counts, worker.inputs = worker.sizes * 1e9, int(worker.sizes.sum() * 10**9)
    monitor.reset()
    assert not monitor.update(worker) and not monitor.update(normal(1000, seed=1))
    assert math.isfinite(monitor.log_evidence)


def test_saving(tmp_path):
    calibration, stream = (2 * normal(800)).round().split([300, 500])  # with ties
    one = Monitor(calibration, false_alarm=0.02, seed=3)
    one.update(stream)
    one.save(tmp_path / "monitor.safetensors")
    again = Monitor.load(tmp_path / "monitor.safetensors")
    assert same(one, again) and repr(one) == repr(again)
    for monitor in (one, again):
        monitor.update(stream + 1)
    assert one.drifted and same(one, again)
    one.save(tmp_path / "monitor.safetensors")
    assert same(one, Monitor.load(tmp_path / "monitor.safetensors"))
    write(tmp_path / "other.safetensors", {"kinds": ["LatentDensity"]}, {})
    with pytest.raises(Unusable, match="no monitor"):
        Monitor.load(tmp_path / "other.safetensors")
    for kind in (Detector, LatentDensity):
        with pytest.raises(Unusable, match=r"holds a Monitor, not a detector: use Monitor\.load\.$"):
            kind.load(tmp_path / "monitor.safetensors", nn.Linear(2, 2))
    one.counts = one.counts[:-1]
    one.save(tmp_path / "monitor.safetensors")
    with pytest.raises(ValueError, match="counts has another shape"):
        Monitor.load(tmp_path / "monitor.safetensors")


def test_one_note_at_the_alarm(caplog):
    monitor = Monitor(normal(200))
    with caplog.at_level(logging.WARNING, "hidden_uncertainty"):
        monitor.update(normal(300, seed=1))
        assert not caplog.records
        for part in (normal(300, seed=2) + 2).split(50):
            monitor.update(part)
    (record,) = caplog.records
    assert f"seen after {monitor.alarm:,}" in record.message and "1.00% of all streams" in record.message


def test_metrics(tmp_path):
    monitor = Monitor(normal(200))
    path = tmp_path / "drift.prom"
    monitor.write_metrics(path)
    before = path.read_text()
    monitor.update(normal(100, seed=1) + 2)
    monitor.write_metrics(path, model='a "b"', place="x\\y")
    assert before != path.read_text() == monitor.metrics(model='a "b"', place="x\\y")
    assert [file.name for file in tmp_path.iterdir()] == ["drift.prom"]
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    form = r'hidden_uncertainty_monitor_(\w+)\{model="a \\"b\\"",place="x\\\\y"\} (\S+)'
    values = {found[1]: float(found[2]) for found in (re.fullmatch(form, line) for line in lines)}
    assert values["inputs_total"] == 100 and values["drifted"] == 1 and values["alarm_evidence"] == 100
    assert values["evidence"] == pytest.approx(monitor.evidence)
    assert path.read_text().endswith("\n") and path.read_text().count("# TYPE") == len(lines) == 4
