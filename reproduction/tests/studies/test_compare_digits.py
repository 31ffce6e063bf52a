"""The comparison on digits: the rough version, its result file and its picture."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn

from hidden_uncertainty import Comparison, plots
from hidden_uncertainty.baselines import NearestNeighbours
from hidden_uncertainty.comparison import FORWARD
from reproduction.studies.compare_digits import study
from reproduction.studies.compare_digits.measure import MIB, compare_methods, kept_memory, mean
from reproduction.studies.compare_digits.picture import draw


def test_it_is_written_and_read_again(tmp_path, monkeypatch):
    rows = [{"method": "energy", "ood": "digits 8-9", "metric": "auroc", "value": 0.912345, "std": 0.1, "n": 5}]
    about = {"inputs": {"in_distribution": 9}, "timed inputs": 9, "batch": 9, "rounds": 5, "threads": 1}
    found = Comparison(rows, {**about, "device": "cpu", "hardware": "a machine", "versions": {}})
    monkeypatch.setattr(study.measure, "compare_methods", lambda **options: found)
    path = study.run().write(tmp_path, "a command")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["compare-digits.json", "compare-digits.png"]
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["seeds"] == [0, 1, 2, 3, 4] and result["settings"]["k of nearest neighbours"] == 1
    assert result["settings"]["run"] == {**about, "device": "cpu"}
    expected = {"ood": "digits 8-9", "method": "energy", "metric": "auroc", "mean": 0.9123, "std": 0.1, "n": 5}
    assert result["rows"] == [{"train": "digits 0-7", **expected}]
    text = str(study.read(result))
    assert "0.912" in text and "1 thread, on cpu" in text and result["hardware"] in text


def test_every_method_is_there_with_everything() -> None:
    comparison = compare_methods(seeds=range(2), quick=True, progress=False)
    assert {row["n"] for row in comparison.rows} == {1}
    found = {(row["method"], row["ood"], row["metric"]): row["value"] for row in comparison.rows}
    methods = set(comparison.methods) - {FORWARD}
    assert len(methods) == 11 and "deep ensemble of 2" in methods and "MC dropout, 10 samples" in methods
    for method in methods:
        for ood in ("digits 8-9", "turned 90°", "noise 0.3"):
            assert all(0 <= found[method, ood, metric] <= 1 for metric in ("auroc", "average precision", "fpr95"))
        for metric in ("accuracy", "aurc epistemic", "ms per input", "times forward", "kept MiB", "train seconds"):
            assert found[method, None, metric] >= 0
    assert found["latent density", "digits 8-9", "auroc"] > 0.8
    # What must be so by construction.
    assert found["softmax entropy", None, "aurc epistemic"] == found["softmax entropy", None, "aurc aleatoric"]
    assert found["energy", None, "kept MiB"] < 0.01 < found["deep ensemble of 2", None, "kept MiB"]
    assert found["deep ensemble of 2", None, "train seconds"] > found["energy", None, "train seconds"]


def row(method, metric, value, ood=None):
    return {"method": method, "ood": ood, "metric": metric, "value": value}


def test_means_of_runs():
    runs = [Comparison([row("a", "accuracy", value)]) for value in (0.5, 0.7, 0.9)]
    (found,) = mean(runs).rows
    assert found["value"] == pytest.approx(0.7) and found["std"] == pytest.approx(0.2) and found["n"] == 3
    assert mean(runs[:1]).rows[0]["std"] == 0.0
    with pytest.raises(ValueError, match="'accuracy' of 'b' was measured in 1 of 2 comparisons"):
        mean([Comparison([row("b", "accuracy", 1.0)]), Comparison([])])
    with pytest.raises(ValueError, match="no comparisons to average"):
        mean([])


@pytest.fixture
def comparison():
    rows = [row(FORWARD, "ms per input", 0.25)]
    rows += [row("one", "auroc", 0.9, "a"), row("one", "fpr95", 0.25, "a"), row("one", "auroc", 0.81234, "another")]
    rows += [row("one", "ms per input", 0.5), row("one", "times forward", 2.0), row("one", "fit seconds", 1.5)]
    rows += [row("the other", "auroc", 1.0, "a"), row("the other", "ms per input", 12.3456)]
    return Comparison(rows)


def test_the_picture_shows_every_number(comparison, tmp_path):
    figure = draw(comparison)
    ax, panel = figure.axes
    drawn = sorted(float(x) for line in ax.lines[:2] for x in line.get_xdata())
    assert drawn == [0.81234, 0.9, 1.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "the other"]
    assert panel.get_xscale() == "log" and panel.get_ylim() == ax.get_ylim()
    texts = [text.get_text() for text in panel.texts]
    assert texts == ["0.500 (2.0 ×)", "12.3", "forward pass: 0.250"]
    assert plots.save(figure, tmp_path / "found.png").stat().st_size > 10_000


def test_data_without_an_auroc_has_no_marks():
    rows = [row("one", "fpr95", 0.25, "a"), row("one", "auroc", 0.75, "b")]
    (ax,) = draw(Comparison(rows)).axes
    marks = {line.get_label(): line.get_xydata() for line in ax.lines}
    assert len(marks["a"]) == 0
    assert marks["b"][:, 0].tolist() == [0.75]


class Holder:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_memory_is_counted_once_and_without_the_network():
    network = nn.Linear(100, 10)
    other = copy.deepcopy(network)
    shared = torch.zeros(1000)
    holder = Holder(
        network=network,
        nested={"a": [shared, shared[:10]], "b": (np.zeros(50), Holder(again=shared))},
        others=[other, other],
        text="text",
        call=torch.zeros(7).sum,
    )
    holder.itself = holder
    own = sum(p.numel() for p in network.parameters())
    assert kept_memory(holder, network) * MIB == pytest.approx(4 * 1000 + 8 * 50 + 4 * own)
    assert kept_memory(holder) * MIB == pytest.approx(4 * 1000 + 8 * 50 + 8 * own)
    assert kept_memory(3) == 0.0


def test_what_neighbours_keep():
    network, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)), torch.randn(600, 6)
    found = NearestNeighbours(network, "0", k=3, task="classification").fit([x])
    # The network's activations on 600 inputs in float32, and their mean in float64.
    assert kept_memory(found, network) * MIB == pytest.approx(600 * 6 * 4 + 6 * 8)
