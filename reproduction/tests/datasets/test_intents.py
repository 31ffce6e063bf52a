"""CLINC150 from small files in its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduction.datasets.intents import LONGEST, OUTSIDE, PADDING, UNKNOWN, clinc150

QUERIES: dict[str, list[list[str]]] = {
    "train": [["Pay the bill", "pay"], ["pay it?", "pay"], ["what time is it", "clock"], ["the time?", "clock"]],
    "val": [["pay", "pay"]],
    "test": [["Time it!", "clock"], ["", "pay"], [" ".join(["pay"] * 50), "pay"]],
    "oos_train": [["sing", "oos"]],
    "oos_val": [["sing", "oos"]],
    "oos_test": [["sing the bill", "oos"]],
}


def write(folder: Path, content: Any) -> None:
    (folder / "clinc150").mkdir(exist_ok=True)
    (folder / "clinc150" / "data_full.json").write_text(content if isinstance(content, str) else json.dumps(content))


def test_words_and_intents_have_numbers(tmp_path: Path) -> None:
    write(tmp_path, QUERIES)
    found = clinc150(root=tmp_path)
    assert found.words == [
        "<padding>",
        "<unknown>",
        "?",
        "it",
        "pay",
        "the",
        "time",
    ]  # in two training queries at least
    assert found.intents == ["clock", "pay"] and found.length == LONGEST
    numbers, labels = found["test"]
    assert numbers.shape == (3, LONGEST) and labels.tolist() == [0, 1, 1]
    assert numbers[0].tolist() == [6, 3, UNKNOWN] + [PADDING] * (LONGEST - 3)
    assert numbers[1, 0] == UNKNOWN  # never padding alone
    assert torch.equal(numbers[2], torch.full((LONGEST,), 4))
    assert found["oos_test"][1].tolist() == [OUTSIDE] and found["oos_test"][0][0, :4].tolist() == [1, 5, 1, 0]
    assert found.digest != clinc150_of(tmp_path, QUERIES | {"val": []}).digest


def clinc150_of(folder: Path, content: Any) -> Any:
    write(folder, content)
    return clinc150(root=folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged or not JSON"),
        ([], "expected the parts train, val, test"),
        ({"train": []}, "not the full version of CLINC150"),
        (QUERIES | {"test": [["a", "b", "c"]]}, r"'test' of .* is not a list of queries, each \[text, intent\]"),
        (QUERIES | {"val": [["a", 1]]}, "'val' of"),
    ],
)
def test_other_files_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        clinc150_of(tmp_path, content)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data_full.json"):
        clinc150(root=tmp_path)
