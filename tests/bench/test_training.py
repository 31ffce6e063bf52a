"""The benchmark of training runs through, tiny, and the page shows what it found. No time is asserted."""

from __future__ import annotations

import json

import torch

from bench import training
from bench.render import fill


def test_both_sets_and_both_kinds_of_norms_are_there(tmp_path, capsys):
    assert training.main(["--quick", "--out", str(tmp_path / "training.json")]) == 0
    found = json.loads((tmp_path / "training.json").read_text())
    assert list(found["sets"]) == ["SVHN", "CIFAR10"] and len(found["steps"]) == 4
    for each in found["sets"].values():
        assert each["epochs"] == [2, 2] and each["steps"] == 4 * (64 // 32)
        assert 0 <= each["accuracy"]["mean"] <= 1 and each["seconds"] > 0 and each["tflops"] > 0
    assert all(len(times) == training.ROUNDS and min(times) > 0 for times in found["steps"].values())
    page = fill("<!-- bench:training -->\n<!-- /bench -->", tmp_path)
    assert "| SVHN | 2 |" in page and "| fused, 2 |" in page and "`python -m bench.training --quick`" in page
    assert "CIFAR10" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert training.main([]) == 2 and "--quick" in capsys.readouterr().err
