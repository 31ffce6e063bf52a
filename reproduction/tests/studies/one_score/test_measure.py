"""What the paper's setting showed is kept where the default alone has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hidden_uncertainty import GaussianMixture
from reproduction.render import render
from reproduction.studies.one_score import measure, methods, study


def test_what_the_papers_setting_showed_is_kept_for_the_same_networks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(methods, "GaussianMixture", lambda **o: GaussianMixture(components=1, max_iter=2))
    monkeypatch.setattr(measure, "ASKED", (0.1, 0.2))  # alarms that few data can tell
    first = study.run(families=["digits"], quick=True)
    path = tmp_path / "one-score.json"

    def write(change: dict[str, Any]) -> None:
        (known,) = first.settings["networks"]["digits"]
        network = {**known, "commit": "an earlier one", **change}
        settings = {"networks": {"digits": [network]}, "seconds": {"digits": 1.0}}
        path.write_text(json.dumps({"settings": settings, "data": {}}))

    write({})
    asked: list[Any] = []
    fitted = measure.fit
    monkeypatch.setattr(measure, "fit", lambda *args: asked.append(args[3]) or fitted(*args))
    again = study.run(families=["digits"], quick=True, earlier=[path], keep_papers=True)
    assert asked == [{}] and again.rows == first.rows
    (record,) = again.settings["networks"]["digits"]
    assert record["paper's setting of"] == "an earlier one"
    assert "is not in the time: digits (an earlier)." in render({**vars(again), "command": "a", "hardware": "b"})
    write({"accuracy": 0.123})
    with pytest.raises(ValueError, match=r"seed 0 is not the one of the earlier result: its accuracy is .*, not 0.123"):
        study.run(families=["digits"], quick=True, earlier=[path], keep_papers=True)
