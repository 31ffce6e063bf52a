"""The comparison on digits as a result file; what it measures is tested with the library."""

import json

from hidden_uncertainty import Comparison
from reproduction.studies.compare_digits import study


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
