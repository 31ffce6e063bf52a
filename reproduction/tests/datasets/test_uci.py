"""Tables of the UCI layout, written here: what is read, how it is standardised, what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from reproduction.datasets.uci import NAMES, Table, uci
from reproduction.results import digest

ROWS = np.random.default_rng(0).normal(size=(12, 5)).round(3) * [1, 100, 0, 1e-3, 10] + [0, 5, 0.998, 0, -3]
FEATURES, TARGET = [4, 0, 1, 2], 3
TRAIN, TEST = [[7, 0, 3, 11, 5, 9], [1, 2, 3, 4, 5, 6]], [[1, 2, 4], [0, 11]]
SEPARATORS = ["\t", "  ", " \t "]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the files of a small `yacht` lie, written as the real ones are: blanks, tabs, an empty line at the end."""
    folder = tmp_path / "UCI_Datasets" / "yacht" / "data"
    folder.mkdir(parents=True)
    lines = [SEPARATORS[i % 3].join(map(str, row)) + " " for i, row in enumerate(ROWS.tolist())]
    (folder / "data.txt").write_text("\n".join(lines) + "\n\n")
    write(folder, "index_features.txt", FEATURES)
    (folder / "index_target.txt").write_text(f"{TARGET}")
    for k in range(2):
        write(folder, f"index_train_{k}.txt", TRAIN[k])
        (folder / f"index_test_{k}.txt").write_text("".join(f"{row:.18e}\n" for row in TEST[k]))
    (folder / "n_splits.txt").write_text("2\n")
    return folder


def write(folder: Path, name: str, numbers: list[int]) -> None:
    (folder / name).write_text("".join(f"{number}\n" for number in numbers))


def read(folder: Path, split: int = 0, dtype: torch.dtype = torch.float64) -> Table:
    return uci("yacht", split, root=folder.parents[2], dtype=dtype)


@pytest.mark.parametrize("split", [0, 1])
def test_rows_and_columns_are_those_the_files_name_standardised_by_training(folder: Path, split: int) -> None:
    table = read(folder, split)
    x, y = ROWS[:, FEATURES], ROWS[:, [TARGET]]
    for values, scale, ours in (
        (x, table.scale_x, (table.train.x, table.test.x)),
        (y, table.scale_y, (table.train.y, table.test.y)),
    ):
        reference = StandardScaler().fit(values[TRAIN[split]])
        for part, rows in zip(ours, (TRAIN[split], TEST[split]), strict=True):
            expected = reference.transform(values[rows])
            np.testing.assert_allclose(part.reshape(expected.shape), expected, atol=1e-12)
            np.testing.assert_allclose(scale.undo(part).reshape(expected.shape), values[rows], atol=1e-12)
    assert (table.name, table.split) == ("yacht", split)
    assert table.train.y.dim() == 1


def test_errors_come_back_in_the_units_of_the_table(folder: Path) -> None:
    table = read(folder)
    ours = (table.test.y - 0.5).abs().mean() * table.scale_y.deviation
    half = ROWS[TRAIN[0], TARGET].mean() + 0.5 * ROWS[TRAIN[0], TARGET].std()
    assert float(ours) == pytest.approx(np.abs(ROWS[TEST[0], TARGET] - half).mean())


def test_a_column_that_never_varies_is_exactly_zero(folder: Path) -> None:
    assert np.std(ROWS[:, 2]) > 0  # rounding, which would be blown up to ±1
    table = read(folder, dtype=torch.float32)
    assert (table.train.x[:, 3] == 0).all()
    assert (table.test.x[:, 3] == 0).all()
    assert table.train.x.dtype == table.train.y.dtype == table.test.x.dtype == torch.float32
    assert table.scale_x.mean.dtype == torch.float64
    assert table.scale_x.undo(table.train.x).dtype == torch.float32


def test_the_digest_is_of_what_was_read(folder: Path) -> None:
    expected = [
        torch.from_numpy(ROWS[rows][:, columns]) for rows in (TRAIN[0], TEST[0]) for columns in (FEATURES, TARGET)
    ]
    assert read(folder).digest == read(folder, dtype=torch.float32).digest == digest(*expected)
    assert read(folder, 1).digest != read(folder).digest
    text = (folder / "data.txt").read_text()
    (folder / "data.txt").write_text(text.replace(str(ROWS[0, 0]), "0.5", 1))
    assert read(folder).digest != digest(*expected)


def test_the_environment_says_where_data_lies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(folder.parents[2]))
    assert uci("yacht").digest == read(folder).digest
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(folder))
    assert uci("yacht", root=folder.parents[2]).digest == read(folder).digest
    sought = folder / "UCI_Datasets" / "yacht" / "data" / "data.txt"
    with pytest.raises(FileNotFoundError, match=f"there is no '{re.escape(str(sought))}': pass --data FOLDER"):
        uci("yacht")
    monkeypatch.delenv("HIDDEN_UNCERTAINTY_DATA")
    with pytest.raises(
        FileNotFoundError, match=r"set HIDDEN_UNCERTAINTY_DATA, to the folder that holds 'UCI_Datasets'"
    ):
        uci("yacht")


def test_unknown_names(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no table 'boston'; nearest names: 'bostonHousing'"):
        uci("boston", root=folder)
    with pytest.raises(ValueError, match=f"there is no table 'xxx'; All: {', '.join(NAMES)}"):
        uci("xxx", root=folder)


@pytest.mark.parametrize("split", [-1, 2, 20])
def test_splits_out_of_range(folder: Path, split: int) -> None:
    with pytest.raises(ValueError, match=rf"yacht has splits 0 … 1 in .*, got split={split}"):
        read(folder, split)


@pytest.mark.parametrize("name", ["index_features.txt", "index_target.txt", "index_train_0.txt", "index_test_0.txt"])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"there is no '.*{name}': this copy of the table is incomplete"):
        read(folder)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1 2 3 4", r"line 15 of '.*data.txt' has 4 numbers, expected 5"),
        ("1 2 3 4 5 6", "has 6 numbers, expected 5"),
        ("1 2 3 ? 5", r"line 15 of '.*data.txt' must hold numbers only: .*'\?'"),
        ("1 2 3 nan 5", r"'.*data.txt' holds 1 numbers that are not finite"),
    ],
)
def test_bad_rows(folder: Path, line: str, expected: str) -> None:
    path = folder / "data.txt"
    path.write_text(path.read_text() + f"\n{line}\n")  # an empty line comes before it
    with pytest.raises(ValueError, match=expected):
        read(folder)


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("index_train_0.txt", "0\n12\n", r"'.*index_train_0.txt' names row 12, but the table has rows 0 … 11 \(1 of 2"),
        ("index_test_0.txt", "-1\n", "names row -1, but the table has rows 0 … 11"),
        ("index_test_0.txt", "1.5\n", r"names row 1\.5"),
        ("index_features.txt", "0\n5\n", "names column 5, but the table has columns 0 … 4"),
        ("index_features.txt", "0\n0\n", r"'.*index_features.txt' names 1 columns more than once"),
        ("index_test_0.txt", "1\n7\n0\n", "split 0 of yacht has 2 rows both in training and in test"),
        ("index_target.txt", "2\n3\n", r"must name one column that is not a feature, got \[2, 3\]"),
        ("index_target.txt", "2\n", r"must name one column that is not a feature, got \[2\]"),
        ("index_train_0.txt", "", r"'.*index_train_0.txt' holds no numbers"),
    ],
)
def test_bad_indices(folder: Path, name: str, numbers: str, expected: str) -> None:
    (folder / name).write_text(numbers)
    with pytest.raises(ValueError, match=expected):
        read(folder)
